//! The settings of the response cache: `--cache-config=local,size=BYTES`, `redis,SETTING=VALUE` for one that servers
//! share, with the names of Triton's cache for Redis, or `NAME,SETTING=VALUE` for a library written for Triton.

use std::fmt;
use std::time::Duration;

use base::limits::{REDIS_CONNECT_TIMEOUT, REDIS_CONNECTIONS, REDIS_CONNECTIONS_MAX, REDIS_LOOKUP_TIMEOUT};
use flags::{Variables, parse};

/// The response cache: in this process, in Redis, a library, or off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheSettings {
    /// Bytes of the cache in this process; 0 without one.
    pub size: usize,
    /// The Redis that is the cache instead; `None` without one.
    pub redis: Option<RedisSettings>,
    /// The library that is the cache instead; `None` without one.
    pub library: Option<CacheLibrarySettings>,
}

impl CacheSettings {
    /// Returns true if there is a cache.
    pub const fn is_on(&self) -> bool {
        self.size > 0 || self.is_shared()
    }

    /// Returns true if the cache is outside of the shards, so that an answer needs a key that others know.
    pub const fn is_shared(&self) -> bool {
        self.redis.is_some() || self.library.is_some()
    }

    /// Returns the names of the configured caches.
    fn names(&self) -> impl Iterator<Item = &str> {
        let local = (self.size > 0).then_some("local");
        let redis = self.redis.as_ref().map(|_| "redis");
        local.into_iter().chain(redis).chain(self.library.as_ref().map(|library| library.name.as_str()))
    }
}

/// A cache that is a library, and its settings, which it reads itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheLibrarySettings {
    /// The NAME in `libtritoncache_NAME.so`.
    pub name: String,
    /// Names and values. A value may be a password.
    pub settings: Vec<(String, Secret)>,
}

impl CacheLibrarySettings {
    /// A later value of a setting replaces an earlier one, as in Triton.
    fn set(&mut self, name: &str, value: &str) {
        let value = Secret(value.to_owned());
        match self.settings.iter_mut().find(|(have, _)| have == name) {
            Some((_, place)) => *place = value,
            None => self.settings.push((name.to_owned(), value)),
        }
    }
}

/// The address of Redis, and its time limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The user of the login; empty for Redis's own default.
    pub user: Secret,
    /// The password; empty for no login.
    pub password: Secret,
    /// The number of the database.
    pub database: u32,
    /// The time that a connection may take to be made, with the login.
    pub connect_timeout: Duration,
    /// The most time that a request waits for Redis.
    pub lookup_timeout: Duration,
    /// The time that a lookup may wait for its turn on a connection.
    pub wait_timeout: Duration,
    /// Connections, each with a thread.
    pub connections: usize,
}

/// A text that is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the text itself, for its intended use.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_empty() { "none" } else { "a secret" })
    }
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            host: String::new(),
            port: 0,
            user: Secret::default(),
            password: Secret::default(),
            database: 0,
            connect_timeout: REDIS_CONNECT_TIMEOUT,
            lookup_timeout: REDIS_LOOKUP_TIMEOUT,
            wait_timeout: REDIS_LOOKUP_TIMEOUT,
            connections: REDIS_CONNECTIONS,
        }
    }
}

/// Reads `local,size=BYTES`, or the setting of another cache.
pub(super) fn read(settings: &mut CacheSettings, value: &str) -> Result<(), String> {
    const FORM: &str = "option format is '<cache name>,<setting>=<value>'";
    let (cache, setting) = value.split_once(',').ok_or(FORM)?;
    let (name, value) = setting.split_once('=').ok_or(FORM)?;
    // Before the settings are read: a fault in a setting of a cache that must go matters less.
    if let Some(other) = settings.names().find(|other| *other != cache) {
        return Err(two_caches(other, cache));
    }
    match (cache, name) {
        ("local", "size") => settings.size = parse(value)?,
        ("local", _) => return Err(format!("'{name}' is no setting of the cache 'local'; expected 'size'")),
        ("redis", _) => read_redis(settings.redis.get_or_insert_default(), name, value)?,
        ("", _) | (_, "") => return Err(FORM.to_owned()),
        _ => {
            let library = settings.library.get_or_insert_default();
            cache.clone_into(&mut library.name);
            library.set(name, value);
        }
    }
    Ok(())
}

/// Begins with Triton's words.
fn two_caches(one: &str, other: &str) -> String {
    format!(
        "--cache-config: multiple cache configurations; there is one cache, and both '{one}' and '{other}' are configured"
    )
}

fn read_redis(redis: &mut RedisSettings, name: &str, value: &str) -> Result<(), String> {
    let of = |why: String| format!("{name}: {why}");
    // Triton's 0 means forever, and no request waits forever here.
    let timeout = |default: Duration| {
        let millis: u32 = parse(value).map_err(of)?;
        Ok::<_, String>(if millis == 0 { default } else { Duration::from_millis(millis.into()) })
    };
    match name {
        "host" if value.is_empty() => return Err("host: expected a name or an address".to_owned()),
        "host" => value.clone_into(&mut redis.host),
        "port" => match value.parse() {
            Ok(port) if port > 0 => redis.port = port,
            _ => return Err("port: expected a port from 1 to 65535".to_owned()),
        },
        "user" => redis.user = Secret(value.to_owned()),
        "password" => redis.password = Secret(value.to_owned()),
        "db" => redis.database = parse(value).map_err(of)?,
        "connect_timeout" => redis.connect_timeout = timeout(REDIS_CONNECT_TIMEOUT)?,
        "socket_timeout" => redis.lookup_timeout = timeout(REDIS_LOOKUP_TIMEOUT)?,
        "wait_timeout" => redis.wait_timeout = timeout(REDIS_LOOKUP_TIMEOUT)?,
        "pool_size" => match parse(value).map_err(of)? {
            connections @ 1..=REDIS_CONNECTIONS_MAX => redis.connections = connections,
            _ => return Err(format!("pool_size: expected a number from 1 to {REDIS_CONNECTIONS_MAX}")),
        },
        "tls_enabled" if value == "false" => {}
        "tls_enabled" | "cert" | "key" | "cacert" | "cacert_dir" | "sni" => {
            return Err(format!(
                "{name}: TLS to Redis is not supported; use a network that is trusted, or a TLS tunnel beside this server"
            ));
        }
        _ => {
            return Err(format!(
                "'{name}' is no setting of the cache 'redis'; expected host, port, user, password, db, connect_timeout, \
                 socket_timeout, wait_timeout or pool_size"
            ));
        }
    }
    Ok(())
}

/// Checks, once all flags are read, that nothing is missing, and reads the variables with the
/// login of Redis. `allows_libraries` is `--allow-agents`.
pub(super) fn check(settings: &mut CacheSettings, allows_libraries: bool, variables: Variables) -> Result<(), String> {
    let mut names = settings.names();
    if let (Some(one), Some(other)) = (names.next(), names.next()) {
        return Err(two_caches(one, other));
    }
    drop(names);
    if let Some(CacheLibrarySettings { name, .. }) = &settings.library
        && !allows_libraries
    {
        return Err(format!(
            "--cache-config: there is no cache '{name}'; expected 'local' or 'redis', or --allow-agents=true for a library \
             of --cache-directory"
        ));
    }
    let Some(redis) = &mut settings.redis else { return Ok(()) };
    if redis.host.is_empty() || redis.port == 0 {
        return Err("--cache-config=redis needs 'host' and 'port', as in --cache-config=redis,host=redis \
             --cache-config=redis,port=6379"
            .to_owned());
    }
    for (place, name) in
        [(&mut redis.user, "TRITONCACHE_REDIS_USERNAME"), (&mut redis.password, "TRITONCACHE_REDIS_PASSWORD")]
    {
        if place.0.is_empty()
            && let Some(value) = variables(name)
        {
            // Without the value: it is a secret.
            place.0 = value.into_string().map_err(|_| format!("{name}: expected UTF-8"))?;
        }
    }
    if redis.password.0.is_empty() && !redis.user.0.is_empty() {
        return Err("--cache-config=redis has a user and no password; set TRITONCACHE_REDIS_PASSWORD".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    /// Returns Redis after these settings, and variables.
    fn redis(words: &[&str], variables: &[(&str, &str)]) -> Result<RedisSettings, String> {
        let mut settings = CacheSettings::default();
        words.iter().try_for_each(|word| read(&mut settings, word))?;
        let variable =
            |name: &str| variables.iter().find(|(have, _)| *have == name).map(|(_, value)| OsString::from(value));
        check(&mut settings, false, &variable)?;
        settings.redis.ok_or_else(|| "none".to_owned())
    }

    const PLACE: [&str; 2] = ["redis,host=r", "redis,port=6379"];

    #[test]
    fn the_settings_of_tritons_cache_are_taken() {
        let more = ["redis,db=2", "redis,connect_timeout=3", "redis,socket_timeout=4", "redis,wait_timeout=5"];
        let words = [&PLACE[..], &more, &["redis,pool_size=6", "redis,tls_enabled=false"]].concat();
        let read = redis(&words, &[]).unwrap();
        let RedisSettings { host, port, database, connections, .. } = &read;
        assert_eq!((host.as_str(), *port, *database, *connections), ("r", 6379, 2, 6));
        let times = [read.connect_timeout, read.lookup_timeout, read.wait_timeout];
        assert_eq!(times.map(|time| time.as_millis()), [3, 4, 5]);
        let zero = redis(&[&PLACE[..], &["redis,socket_timeout=0"]].concat(), &[]).unwrap();
        assert_eq!(zero.lookup_timeout, REDIS_LOOKUP_TIMEOUT, "Triton's 0 is for ever, and nobody waits for ever");
    }

    #[test]
    fn the_login_comes_from_variables_unless_it_is_given_and_is_shown_to_nobody() {
        let variables = [("TRITONCACHE_REDIS_USERNAME", "u1"), ("TRITONCACHE_REDIS_PASSWORD", "p1")];
        let login = |read: &RedisSettings| [read.user.reveal().to_owned(), read.password.reveal().to_owned()];
        assert_eq!(login(&redis(&PLACE, &variables).unwrap()), ["u1", "p1"]);
        let given = [&PLACE[..], &["redis,user=u2", "redis,password=p2=,"]].concat();
        let read = redis(&given, &variables).unwrap();
        assert_eq!(login(&read), ["u2", "p2=,"]);
        let shown = format!("{read:?}");
        assert!(!shown.contains("p2") && !shown.contains("u2"), "{shown}");
        assert_eq!(login(&redis(&PLACE, &[]).unwrap()), ["", ""]);
    }

    #[test]
    fn what_is_missing_or_not_supported_is_said_by_name() {
        let check = |words: &[&str], want: &str| {
            let why = redis(words, &[]).unwrap_err();
            assert!(why.contains(want), "{words:?}: {why}");
            assert!(!why.contains("secret"), "{why}");
        };
        check(&["redis,host=r"], "needs 'host' and 'port'");
        check(&["redis,port=1"], "needs 'host' and 'port'");
        check(&["redis,port=0"], "port: expected a port from 1 to 65535");
        check(&["redis,host="], "host: expected a name or an address");
        check(&["redis,db=x"], "db: expected a whole number");
        check(&["redis,pool_size=0"], "pool_size: expected a number from 1 to 64");
        check(&["redis,pool_size=65"], "pool_size: expected a number from 1 to 64");
        check(&[&PLACE[..], &["redis,user=secret"]].concat(), "a user and no password");
        check(&["redis,pasword=secret"], "'pasword' is no setting of the cache 'redis'");
        for setting in ["tls_enabled=true", "cert=c", "key=k", "cacert=c", "cacert_dir=d", "sni=s"] {
            check(&[&format!("redis,{setting}")], "TLS to Redis is not supported");
        }
        check(&[&PLACE[..], &["local,size=7"]].concat(), "there is one cache");
        check(&["local,size=7", "redis,key=value"], "multiple cache configurations");
        check(&["memcached,host=r", "redis,key=value"], "both 'memcached' and 'redis' are configured");
        check(&["memcached,host=secret", "other,host=r"], "both 'memcached' and 'other' are configured");
        check(&[",host=r"], "option format is");
        check(&["memcached,=r"], "option format is");
        let want = "there is no cache 'memcached'; expected 'local' or 'redis', or --allow-agents=true for a library of \
                    --cache-directory";
        check(&["memcached,host=secret"], want);
    }

    #[test]
    fn a_library_gets_its_settings_as_they_are_the_last_of_a_name() {
        let mut settings = CacheSettings::default();
        for word in ["memcached,host=r", "memcached,password=a=,b", "memcached,host=s"] {
            read(&mut settings, word).unwrap();
        }
        assert_eq!(check(&mut settings, true, &|_| None), Ok(()));
        assert!(settings.is_on() && settings.is_shared());
        let library = settings.library.unwrap();
        let read: Vec<_> = library.settings.iter().map(|(name, value)| (name.as_str(), value.reveal())).collect();
        assert_eq!((library.name.as_str(), read), ("memcached", vec![("host", "s"), ("password", "a=,b")]));
        assert!(!format!("{library:?}").contains("a=,b"), "values may be secrets");
        // Only the deprecated flag brings both this far.
        let mut both = CacheSettings { size: 1, library: Some(library), redis: None };
        assert!(check(&mut both, true, &|_| None).unwrap_err().contains("both 'local' and 'memcached'"));
    }
}
