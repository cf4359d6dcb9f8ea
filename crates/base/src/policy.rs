//! The operator's rules for clients: the parts of the interface that ask for a header field with a
//! secret value, the header fields that reach models, the keep-alive of gRPC connections, and the
//! requests that are refused at once under load. Values from the command line; `protocol::policy`
//! and the queues apply them to requests.

mod cors;

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use regex_lite::{Regex, RegexBuilder};

use crate::limits::{
    BODY_TIMEOUT, HEAD_TIMEOUT, HEADER_PATTERN_SIZE_MAX, IDLE_TIMEOUT, KEEP_ALIVE_TIME, KEEP_ALIVE_TIMEOUT,
    PING_STRIKES_MAX, PINGS_WITHOUT_DATA_MAX, WRITE_TIMEOUT,
};

pub use cors::CorsOrigins;

/// The timeouts of a connection, whatever the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionTimeouts {
    /// From the first byte of a head or frame until it must be complete (`--http-head-timeout`).
    pub head: Duration,
    /// Until a body must have brought `BODY_STEP_SIZE` bytes, or its end (`--http-body-timeout`).
    pub body: Duration,
    /// Until the client must have taken `BODY_STEP_SIZE` bytes of an answer, or all of it (`--http-write-timeout`).
    pub write: Duration,
    /// Between two requests (`--http-idle-timeout`).
    pub idle: Duration,
}

impl Default for ConnectionTimeouts {
    fn default() -> Self {
        Self { head: HEAD_TIMEOUT, body: BODY_TIMEOUT, write: WRITE_TIMEOUT, idle: IDLE_TIMEOUT }
    }
}

/// The content and the audience of the console on the metrics port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsoleRules {
    /// Its audience.
    pub audience: ConsoleAudience,
    /// Its own port, which has the metrics too, if it is served on a chosen one.
    pub port: Option<u16>,
    /// True if its own port has TLS.
    pub has_tls: bool,
    /// The port of HTTP, if it is served on a chosen one.
    pub http_port: Option<u16>,
    /// True if that port has TLS.
    pub has_http_tls: bool,
    /// True if models can be asked: false if HTTP is off, or asks for certificates that the metrics
    /// port does not ask for.
    pub asks_models: bool,
    /// True if it loads and unloads models for clients with a key that allows it: false without keys, since any page that
    /// reaches the port could do so then, and where changes come by a socket of their own alone.
    pub changes_models: bool,
}

/// The audience of the console on the metrics port (`--console`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsoleAudience {
    /// Every client that reaches the port.
    All,
    /// Clients on this machine.
    #[default]
    Loopback,
    /// No client.
    None,
}

/// The rule by which requests are refused on arrival, from measured run times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmissionRule {
    /// Refuses requests that would be answered after their deadline: run times count by their upper
    /// bound, and a queue timeout that the client sets is a deadline for the answer.
    Deadline,
    /// Refuses no request: each waits until its time is over.
    None,
    /// Refuses requests that would still wait at the end of their queue timeout: run times count by
    /// their mean. A request without a full batch before it is never refused, so that the next run
    /// corrects a wrong forecast.
    #[default]
    Queue,
}

/// A part of the interface that can be restricted, as tritonserver divides it. Every endpoint and RPC belongs to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiCategory {
    /// Liveness and readiness of the server and of models.
    Health,
    /// Descriptions of the server, its models and its interface.
    Metadata,
    /// All ways to run a model.
    Inference,
    /// Regions of shared memory.
    SharedMemory,
    /// Configurations of models.
    ModelConfig,
    /// The index, loads and unloads.
    ModelRepository,
    /// Statistics of models.
    Statistics,
    /// Trace settings.
    Trace,
    /// Log settings.
    Logging,
}

impl ApiCategory {
    /// All of them, in their order.
    pub const ALL: [Self; 9] = [
        Self::Health,
        Self::Metadata,
        Self::Inference,
        Self::SharedMemory,
        Self::ModelConfig,
        Self::ModelRepository,
        Self::Statistics,
        Self::Trace,
        Self::Logging,
    ];

    /// Returns its name in a flag.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Metadata => "metadata",
            Self::Inference => "inference",
            Self::SharedMemory => "shared-memory",
            Self::ModelConfig => "model-config",
            Self::ModelRepository => "model-repository",
            Self::Statistics => "statistics",
            Self::Trace => "trace",
            Self::Logging => "logging",
        }
    }

    /// Returns the class of key that opens it, if clients have keys; health is open.
    pub const fn class(self) -> Option<KeyClass> {
        match self {
            Self::Health => None,
            Self::Inference => Some(KeyClass::Infer),
            Self::Metadata | Self::ModelConfig | Self::Statistics => Some(KeyClass::Read),
            Self::Logging | Self::ModelRepository | Self::SharedMemory | Self::Trace => Some(KeyClass::Admin),
        }
    }
}

/// The calls that an API key opens. Health needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyClass {
    /// Changes to the server: loads and unloads, traces, log settings, regions of shared memory.
    Admin,
    /// Inference.
    Infer,
    /// The metrics.
    Metrics,
    /// Descriptions of the server and its models: metadata, configurations, statistics, the index,
    /// and the metrics.
    Read,
}

impl KeyClass {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Admin, Self::Infer, Self::Metrics, Self::Read];

    /// Returns its name in the file of keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Infer => "infer",
            Self::Metrics => "metrics",
            Self::Read => "read",
        }
    }

    /// Returns the class with this name.
    #[inline]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Returns all names, as errors list them.
    #[inline]
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

/// A protocol that flags of the policy are given for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyProtocol {
    /// REST, over HTTP/1.1 and HTTP/2.
    Http,
    /// gRPC.
    Grpc,
}

impl PolicyProtocol {
    /// Returns tritonserver's word for a restricted part, in its errors.
    pub const fn restricted(self) -> &'static str {
        match self {
            Self::Http => "API",
            Self::Grpc => "protocol",
        }
    }

    /// Returns the prefix of the flag's key in the name of the header field.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Http => "",
            Self::Grpc => "triton-grpc-protocol-",
        }
    }
}

/// The operator's rules for the clients of one protocol. The default restricts and forwards
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientPolicy {
    /// The categories that need a key.
    pub restrictions: ApiRestrictions,
    /// The header fields that reach models.
    pub forwarded: Option<HeaderPattern>,
    /// The origins whose pages may read answers; of HTTP alone.
    pub cors: CorsOrigins,
}

impl ClientPolicy {
    /// Returns true if it looks at the header fields of requests.
    #[inline]
    pub fn reads_fields(&self) -> bool {
        self.forwarded.is_some() || !self.restrictions.is_empty()
    }
}

/// The keys by category; a category without one is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiRestrictions([Option<Arc<ApiKey>>; ApiCategory::ALL.len()]);

impl ApiRestrictions {
    /// Adds `CATEGORIES:KEY=VALUE` of a flag. The error never contains the value.
    ///
    /// # Errors
    /// tritonserver's text for a text of another form, an unknown category, or a category that has
    /// a key.
    pub fn restrict(&mut self, protocol: PolicyProtocol, text: &str) -> Result<(), String> {
        let form = || "option format is '<config name>:<setting>=<value>'".to_owned();
        let (categories, key) = text.split_once(':').ok_or_else(form)?;
        let (key, value) = key.split_once('=').ok_or_else(form)?;
        if key.is_empty() || value.is_empty() {
            return Err(form());
        }
        let kind = protocol.restricted().to_ascii_lowercase();
        let key = Arc::new(ApiKey { header: format!("{}{key}", protocol.prefix()), value: value.to_owned() });
        for name in categories.split(',') {
            let place = ApiCategory::ALL.iter().zip(&mut self.0).find(|(category, _)| category.name() == name);
            let Some((_, place)) = place else {
                // The text behind a `=` may be a secret in the wrong place.
                let name = name.split('=').next().unwrap_or_default();
                return Err(format!("unknown restricted {kind} '{name}'; expected {}", names()));
            };
            if place.is_some() {
                return Err(format!("restricted {kind} '{name}' can not be specified in multiple config groups"));
            }
            *place = Some(Arc::clone(&key));
        }
        Ok(())
    }

    /// Returns true if every category is open.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Returns the key that a category asks for.
    #[inline]
    pub fn key(&self, category: ApiCategory) -> Option<&ApiKey> {
        self.0.get(category as usize)?.as_deref()
    }
}

fn names() -> String {
    ApiCategory::ALL.map(ApiCategory::name).join(", ")
}

/// A header field and the secret value that opens a category.
#[derive(PartialEq, Eq)]
pub struct ApiKey {
    header: String,
    value: String,
}

impl ApiKey {
    /// Returns the name of the header field.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// Returns true if a value is the secret one. Takes the same time wherever the two differ, so
    /// that a client cannot find the value byte by byte; its length is no secret.
    pub fn is_opened_by(&self, value: &[u8]) -> bool {
        let own = self.value.as_bytes();
        let difference =
            own.iter().zip(value).fold(0, |difference, (own, given)| black_box(difference | (own ^ given)));
        own.len() == value.len() && difference == 0
    }
}

/// Without the value, which no log may contain.
impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey").field("header", &self.header).finish_non_exhaustive()
    }
}

/// Times and limits of PINGs to and from gRPC clients, and the maximum age of their connections, as
/// in gRPC's channel arguments. The defaults are tritonserver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlivePolicy {
    /// A client that is silent for this time gets a PING; `None` for never
    /// (`--grpc-keepalive-time`).
    pub time: Option<Duration>,
    /// It must send something in this time after it (`--grpc-keepalive-timeout`).
    pub timeout: Duration,
    /// True if both sides may send PINGs while no call is open
    /// (`--grpc-keepalive-permit-without-calls`).
    pub permits_without_calls: bool,
    /// Our PINGs between two frames with content of ours; 0 for any number (`--grpc-http2-max-pings-without-data`).
    pub pings_without_data_max: u32,
    /// Time between two PINGs of a client to which we send nothing in between; `None` for any while a call is open, and
    /// gRPC's else (`--grpc-http2-min-recv-ping-interval-without-data`).
    pub ping_interval_min: Option<Duration>,
    /// Number of a client's PINGs that may come too early; 0 for any number (`--grpc-http2-max-ping-strikes`).
    pub ping_strikes_max: u32,
    /// Age at which a connection drains; `None` for no limit (`--grpc-max-connection-age`).
    pub age_max: Option<Duration>,
    /// Time that its calls then have to end; `None` for no limit
    /// (`--grpc-max-connection-age-grace`).
    pub age_grace: Option<Duration>,
}

impl Default for KeepAlivePolicy {
    fn default() -> Self {
        Self {
            time: Some(KEEP_ALIVE_TIME),
            timeout: KEEP_ALIVE_TIMEOUT,
            permits_without_calls: false,
            pings_without_data_max: PINGS_WITHOUT_DATA_MAX,
            ping_interval_min: None,
            ping_strikes_max: PING_STRIKES_MAX,
            age_max: None,
            age_grace: None,
        }
    }
}

/// A regular expression for names of header fields. As in tritonserver it may match anywhere in a
/// name, in any case, unless it says `(?-i)`; matching takes linear time.
#[derive(Clone, Debug)]
pub struct HeaderPattern(Regex);

impl HeaderPattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// If the pattern is not a regular expression, or compiles to more than
    /// [`HEADER_PATTERN_SIZE_MAX`] bytes.
    pub fn new(pattern: &str) -> Result<Self, String> {
        let mut builder = RegexBuilder::new(pattern);
        let built = builder.case_insensitive(true).size_limit(HEADER_PATTERN_SIZE_MAX).build();
        built.map(Self).map_err(|error| {
            format!("expected a regular expression of at most {HEADER_PATTERN_SIZE_MAX} bytes when compiled: {error}")
        })
    }

    /// Returns true if the pattern is found in a name.
    #[inline]
    pub fn is_in(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

impl PartialEq for HeaderPattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for HeaderPattern {}

/// A regular expression for the path of a request, which it must match from its first byte to its last; case counts.
/// Matching takes linear time.
#[derive(Clone, Debug)]
pub struct PathPattern {
    text: String,
    whole: Regex,
}

impl PathPattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// If the pattern is not a regular expression, or compiles to more than
    /// [`HEADER_PATTERN_SIZE_MAX`] bytes.
    pub fn new(pattern: &str) -> Result<Self, String> {
        // First compiled by itself: `)(` would be valid inside the group.
        let build = |text: &str| RegexBuilder::new(text).size_limit(HEADER_PATTERN_SIZE_MAX).build();
        let whole = build(pattern).and_then(|_| build(&format!("^(?:{pattern})$")));
        whole.map(|whole| Self { text: pattern.to_owned(), whole }).map_err(|error| {
            format!("expected a regular expression of at most {HEADER_PATTERN_SIZE_MAX} bytes when compiled: {error}")
        })
    }

    /// Returns true if the pattern matches a path.
    #[inline]
    pub fn matches(&self, path: &str) -> bool {
        self.whole.is_match(path)
    }
}

impl PartialEq for PathPattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for PathPattern {}

#[cfg(test)]
mod tests {
    use super::*;

    fn restricted(protocol: PolicyProtocol, flags: &[&str]) -> Result<ApiRestrictions, String> {
        let mut restrictions = ApiRestrictions::default();
        flags.iter().try_for_each(|text| restrictions.restrict(protocol, text)).map(|()| restrictions)
    }

    #[test]
    fn categories_get_their_keys_and_the_others_stay_open() {
        let restrictions = restricted(PolicyProtocol::Http, &["health,trace:a=b=c", "inference:k:x=1"]).unwrap();
        let header = |category| restrictions.key(category).map(ApiKey::header);
        for category in ApiCategory::ALL {
            let want = match category {
                ApiCategory::Health | ApiCategory::Trace => Some("a"),
                ApiCategory::Inference => Some("k:x"),
                _ => None,
            };
            assert_eq!(header(category), want, "{category:?}");
        }
        let key = restrictions.key(ApiCategory::Trace).unwrap();
        assert!(key.is_opened_by(b"b=c"));
        assert!([&b""[..], b"b", b"b=d", b"b=c ", b"B=c"].iter().all(|value| !key.is_opened_by(value)));
        assert!(!restrictions.is_empty() && ApiRestrictions::default().is_empty());
        let restrictions = restricted(PolicyProtocol::Grpc, &["health:admin-key=v"]).unwrap();
        assert_eq!(restrictions.key(ApiCategory::Health).map(ApiKey::header), Some("triton-grpc-protocol-admin-key"));
    }

    #[test]
    fn what_is_wrong_is_said_as_tritonserver_says_it_and_without_the_secret() {
        let check = |protocol, flags: &[&str], want: &str| {
            let text = restricted(protocol, flags).unwrap_err();
            assert!(text.starts_with(want) && !text.contains("s3cret"), "{flags:?}: {text}");
        };
        let (http, grpc) = (PolicyProtocol::Http, PolicyProtocol::Grpc);
        check(http, &["model-reposit,health:k1=s3cret"], "unknown restricted api 'model-reposit'; expected health, ");
        check(grpc, &["Health:k1=s3cret"], "unknown restricted protocol 'Health'");
        check(http, &["k=s3cret:a=b"], "unknown restricted api 'k'");
        let twice = ["model-repository,health:k1=s3cret", "metadata,health:k2=s3cret"];
        check(http, &twice, "restricted api 'health' can not be specified in multiple config groups");
        check(grpc, &["health,health:k=s3cret"], "restricted protocol 'health' can not be specified in multiple");
        for text in ["s3cret", "health:s3cret", "health=s3cret", "health:=s3cret", "health:k="] {
            check(http, &[text], "option format is '<config name>:<setting>=<value>'");
        }
        let restrictions = restricted(http, &["health:k=s3cret"]).unwrap();
        assert!(!format!("{restrictions:?}").contains("s3cret"));
    }

    #[test]
    fn a_pattern_is_found_anywhere_in_a_name_whatever_the_case() {
        let check = |pattern: &str, name: &str, want| {
            assert_eq!(HeaderPattern::new(pattern).unwrap().is_in(name), want, "{pattern} in {name}");
        };
        check("my_header", "X-MY_HEADER-1", true);
        check("^my_header.*", "x-my_header", false);
        check("(?-i)my", "My", false);
        check("(my_header|user)", "user-agent", true);
        check("PREFIX_.*", "prefix_a", true);
        check("", "a", true);
    }

    #[test]
    fn a_path_matches_as_a_whole() {
        let check = |pattern: &str, path: &str, want| {
            assert_eq!(PathPattern::new(pattern).unwrap().matches(path), want, "{pattern} and {path}");
        };
        check("/predict", "/predict", true);
        check("/predict", "/predict/", false);
        check("/predict", "/v1/predict", false);
        check("/predict", "/Predict", false);
        check("/predict", "/predict\n", false);
        check("/a|/b", "/ab", false);
        check("/a|/b", "/b", true);
        check("/v1/endpoints/[0-9]+:predict", "/v1/endpoints/12:predict", true);
    }

    #[test]
    fn a_pattern_that_is_none_or_too_large_is_refused() {
        for pattern in ["(", "a{1000}{1000}{10}", "[z-a]", r"(a)\1", ")("] {
            assert!(PathPattern::new(pattern).unwrap_err().starts_with("expected a regular expression"), "{pattern}");
            assert!(HeaderPattern::new(pattern).unwrap_err().starts_with("expected a regular expression"), "{pattern}");
        }
    }
}
