//! Model repositories in stores: the forms of their URLs, which are Triton's, and the settings of
//! their copies on disk. Nothing here reaches a store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Secret;
use base::limits::{STORE_BYTES_MAX, STORE_CONNECTIONS, STORE_SILENCE_MAX};
use flags::Variables;

/// The settings of all stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// The directory for fetched objects; `None` for the one that the variables give.
    pub cache: Option<PathBuf>,
    /// Triton's directories for the fetched objects of one kind of store.
    pub mounts: Vec<(StoreKind, PathBuf)>,
    /// The directory if neither names one.
    pub cache_default: PathBuf,
    /// Bytes of one store that are kept.
    pub bytes_max: u64,
    /// Ranges of one store that are fetched at a time.
    pub connections: usize,
    /// The time that a store may be silent until it counts as lost.
    pub silence_max: Duration,
    /// Triton's file of credentials.
    pub credentials: Option<PathBuf>,
    /// The key of the account of Azure in Triton's variable.
    pub azure_key: Secret,
}

/// The kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreKind {
    /// Azure Blob Storage.
    Azure,
    /// Google Cloud Storage.
    Gcs,
    /// An HTTP server with an `index.json`.
    Http,
    /// S3, or what speaks its protocol.
    S3,
}

/// The place of a repository in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl {
    /// The kind of the store.
    pub kind: StoreKind,
    /// Its server, as `https://host:port`; empty for the store's own.
    pub endpoint: String,
    /// The account, in Azure.
    pub account: String,
    /// The bucket or container; empty over HTTP.
    pub bucket: String,
    /// The path in it, without slashes around; empty for all of it.
    pub prefix: String,
    /// The whole, in one form.
    pub text: String,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            cache: None,
            mounts: Vec::new(),
            cache_default: PathBuf::from("/var/cache/deuteron/stores"),
            bytes_max: STORE_BYTES_MAX,
            connections: STORE_CONNECTIONS,
            silence_max: STORE_SILENCE_MAX,
            credentials: None,
            azure_key: Secret::default(),
        }
    }
}

impl StoreSettings {
    /// Returns the directory for the fetched objects of a kind of store.
    pub fn cache_of(&self, kind: StoreKind) -> &Path {
        let mount = self.mounts.iter().find(|(of, _)| *of == kind).map(|(_, path)| path);
        self.cache.as_ref().or(mount).unwrap_or(&self.cache_default)
    }

    /// Reads the variables, after the flags.
    pub(super) fn apply(&mut self, variables: Variables) {
        let path = |name: &str| variables(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        self.credentials = path("TRITON_CLOUD_CREDENTIAL_PATH");
        let key = variables("AZURE_STORAGE_KEY").and_then(|key| key.into_string().ok());
        self.azure_key = Secret::new(key.unwrap_or_default());
        for (kind, name) in [
            (StoreKind::S3, "TRITON_AWS_MOUNT_DIRECTORY"),
            (StoreKind::Azure, "TRITON_AZURE_MOUNT_DIRECTORY"),
            (StoreKind::Gcs, "TRITON_GCS_MOUNT_DIRECTORY"),
        ] {
            self.mounts.extend(path(name).map(|path| (kind, path)));
        }
        // A unit of systemd has a directory of its own; a person's is where all caches are.
        let own = path("CACHE_DIRECTORY").map(|path| path.join("stores"));
        let user = path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")));
        let own = own.or_else(|| user.map(|cache| cache.join("deuteron/stores")));
        self.cache_default = own.unwrap_or_else(|| Self::default().cache_default);
    }
}

impl StoreUrl {
    /// Returns the store that a path of `--model-repository` names; `None` if it is a path.
    ///
    /// # Errors
    /// Its fault, without the parts that may be secrets.
    pub fn read(path: &Path) -> Option<Result<Self, String>> {
        let text = path.to_str()?;
        let (scheme, rest) = text.split_once("://")?;
        let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte);
        if scheme.is_empty() || !scheme.bytes().all(is_scheme) {
            return None;
        }
        let read = match scheme.to_ascii_lowercase().as_str() {
            "as" => azure(rest),
            "gs" => bucket(StoreKind::Gcs, "", rest),
            "http" | "https" => http(&scheme.to_ascii_lowercase(), rest),
            "s3" => s3(rest),
            // The whole may have a password.
            other => Err(format!("{other}:// is no store; expected s3://, gs://, as://, https:// or a path")),
        };
        Some(read.map(|url| Self { text: url.one_form(), ..url }))
    }

    /// Returns the path of an object in the bucket.
    pub fn key(&self, path: &str) -> String {
        match (self.prefix.as_str(), path) {
            ("", path) => path.to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, path) => format!("{prefix}/{path}"),
        }
    }

    /// Returns true if the connection to it is not encrypted.
    pub fn is_plain(&self) -> bool {
        self.endpoint.starts_with("http://")
    }

    fn one_form(&self) -> String {
        let Self { endpoint, account, bucket, prefix, .. } = self;
        let parts: &[&str] = match self.kind {
            StoreKind::Azure => &["as:/", account, bucket, prefix],
            StoreKind::Gcs => &["gs:/", bucket, prefix],
            StoreKind::Http => &[endpoint, prefix],
            StoreKind::S3 if endpoint.is_empty() => &["s3:/", bucket, prefix],
            StoreKind::S3 => &["s3:/", endpoint, bucket, prefix],
        };
        parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("/")
    }
}

/// Refuses invalid URLs of repositories, and all of them in a build without stores.
pub(super) fn check(repositories: &[PathBuf], has_stores: bool) -> Result<(), String> {
    for url in repositories.iter().filter_map(|path| StoreUrl::read(path)) {
        let url = url.map_err(|why| format!("--model-repository: {why}"))?;
        if !has_stores {
            return Err(format!(
                "--model-repository={}: this program was built without model stores; the released packages have them, \
                 as has `cargo build --release --features stores`",
                url.text
            ));
        }
    }
    Ok(())
}

/// Reads `bucket/path`, `host:port/bucket/path` or `https://host:port/bucket/path`. As in Triton, a
/// server named without a scheme is used without TLS.
fn s3(rest: &str) -> Result<StoreUrl, String> {
    for scheme in ["http", "https"] {
        if let Some(rest) = rest.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")) {
            let (host, rest) = rest.split_once('/').ok_or_else(|| no_bucket("s3://https://host:port"))?;
            return bucket(StoreKind::S3, &server(scheme, host)?, rest);
        }
    }
    match rest.split_once('/') {
        Some((host, rest)) if host.contains(':') => bucket(StoreKind::S3, &server("http", host)?, rest),
        _ if rest.contains(':') && !rest.contains('/') => Err(no_bucket("s3://host:port")),
        _ => bucket(StoreKind::S3, "", rest),
    }
}

/// Reads `account/container/path`.
fn azure(rest: &str) -> Result<StoreUrl, String> {
    let (account, rest) = rest.split_once('/').ok_or_else(|| no_bucket("as://account"))?;
    // Triton's form with the host of the account says the same.
    let account = account.strip_suffix(".blob.core.windows.net").unwrap_or(account);
    if account.is_empty() || !account.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err("as://: expected the name of an account first, as in as://account/container/path".to_owned());
    }
    Ok(StoreUrl { account: account.to_owned(), ..bucket(StoreKind::Azure, "", rest)? })
}

/// Reads `host:port/path`: the directory that has `index.json`.
fn http(scheme: &str, rest: &str) -> Result<StoreUrl, String> {
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (endpoint, prefix) = (server(scheme, host)?, prefix(path)?);
    let (account, bucket) = (String::new(), String::new());
    Ok(StoreUrl { kind: StoreKind::Http, endpoint, account, bucket, prefix, text: String::new() })
}

fn server(scheme: &str, host: &str) -> Result<String, String> {
    if host.contains('@') {
        return Err(format!("{scheme}://…@…: a URL with a password is seen by others; {CREDENTIALS}"));
    }
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_host) {
        return Err(format!("{scheme}://: expected a host, as in {scheme}://host:port/path"));
    }
    Ok(format!("{scheme}://{host}"))
}

fn bucket(kind: StoreKind, endpoint: &str, rest: &str) -> Result<StoreUrl, String> {
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_$".contains(&byte);
    if bucket.is_empty() || !bucket.bytes().all(is_name) {
        let form = match kind {
            StoreKind::Azure => "as://account/container/path",
            StoreKind::Gcs => "gs://bucket/path",
            StoreKind::Http | StoreKind::S3 => "s3://bucket/path or s3://https://host:port/bucket/path",
        };
        return Err(format!("expected the name of a bucket, as in {form}"));
    }
    let (endpoint, bucket, prefix) = (endpoint.to_owned(), bucket.to_owned(), prefix(path)?);
    Ok(StoreUrl { kind, endpoint, account: String::new(), bucket, prefix, text: String::new() })
}

/// Reads the path of a repository, without redundant slashes.
fn prefix(path: &str) -> Result<String, String> {
    if path.contains(['?', '#']) {
        return Err(format!(
            "a URL of a repository has no '?' and no '#', behind which secrets may stand; {CREDENTIALS}"
        ));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if parts.iter().any(|part| matches!(*part, "." | "..") || part.chars().any(char::is_control)) {
        return Err("the path of a repository has no '.', no '..' and no control characters".to_owned());
    }
    Ok(parts.join("/"))
}

fn no_bucket(begin: &str) -> String {
    format!("expected a bucket or container behind {begin}, as in {begin}/bucket/path")
}

/// The place for secrets.
const CREDENTIALS: &str = "give it by the variables of the store's own tools or by TRITON_CLOUD_CREDENTIAL_PATH";

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn a_url_has_tritons_forms_and_one_text() {
        for (url, want) in [
            ("s3://b/p/q/", "S3 - - b p/q s3://b/p/q"),
            ("s3://b", "S3 - - b - s3://b"),
            ("S3://b//p", "S3 - - b p s3://b/p"),
            ("s3://10.0.0.1:9000/b/p", "S3 http://10.0.0.1:9000 - b p s3://http://10.0.0.1:9000/b/p"),
            ("s3://https://h:9000/b/p", "S3 https://h:9000 - b p s3://https://h:9000/b/p"),
            ("s3://http://h:9000/b", "S3 http://h:9000 - b - s3://http://h:9000/b"),
            ("s3://https://[::1]:9000/b", "S3 https://[::1]:9000 - b - s3://https://[::1]:9000/b"),
            ("gs://b/p", "Gcs - - b p gs://b/p"),
            ("as://a/c/p", "Azure - a c p as://a/c/p"),
            ("as://a.blob.core.windows.net/c", "Azure - a c - as://a/c"),
            ("as://a/$web/p", "Azure - a $web p as://a/$web/p"),
            ("https://h/p/q", "Http https://h - - p/q https://h/p/q"),
            ("http://h:81", "Http http://h:81 - - - http://h:81"),
        ] {
            let StoreUrl { kind, endpoint, account, bucket, prefix, text } = read(url).unwrap().unwrap();
            let parts = [endpoint, account, bucket, prefix].map(|part| if part.is_empty() { "-".into() } else { part });
            assert_eq!(format!("{kind:?} {} {text}", parts.join(" ")), want, "{url}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_its_secrets() {
        for (url, want) in [
            ("s3://", "expected the name of a bucket"),
            ("s3:///p", "expected the name of a bucket"),
            ("s3://h:9000", "expected a bucket or container behind s3://host:port"),
            ("s3://https://h:9000", "expected a bucket or container behind s3://https://host:port"),
            ("s3://https://key:secret@h/b", "a URL with a password is seen by others"),
            ("s3://key:secret@h/b", "a URL with a password is seen by others"),
            ("s3://b/p/../q", "no '..'"),
            ("s3://b/p/./q", "no '.'"),
            ("s3://b/p\u{1}", "no control characters"),
            ("s3://b/p?versionId=secret", "no '?'"),
            ("as://a", "expected a bucket or container behind as://account"),
            ("as:///c", "expected the name of an account"),
            ("as://a/c?sv=secret", "expected the name of a bucket, as in as://"),
            ("as://a/c/p?sv=secret", "no '?'"),
            ("https://user:secret@h/p", "a URL with a password is seen by others"),
            ("https:///p", "expected a host"),
            ("ftp://user:secret@h/p", "ftp:// is no store"),
        ] {
            let why = read(url).unwrap().unwrap_err();
            assert!(why.contains(want) && !why.contains("secret@") && !why.contains("=secret"), "{url}: {why}");
        }
        for path in ["models", "/models", "a/s3://b", "://b", "s3:/b", "C:\\models"] {
            assert_eq!(read(path), None, "{path}");
        }
    }

    #[test]
    fn a_build_without_stores_says_which_has_them() {
        let paths = ["models", "s3://b/p"].map(PathBuf::from);
        assert_eq!(check(&paths, true), Ok(()));
        assert_eq!(check(&paths[..1], false), Ok(()));
        let why = check(&paths, false).unwrap_err();
        assert!(why.starts_with("--model-repository=s3://b/p: ") && why.contains("--features stores"), "{why}");
        assert!(check(&["ftp://b".into()], true).is_err());
    }

    #[test]
    fn the_key_of_an_object_lies_in_the_repository() {
        let key = |url: &str, path: &str| read(url).unwrap().unwrap().key(path);
        assert_eq!(key("s3://b/p", "m/1/a"), "p/m/1/a");
        assert_eq!((key("s3://b", "m"), key("s3://b/p", ""), key("s3://b", "")), ("m".into(), "p".into(), "".into()));
    }

    #[test]
    fn the_cache_is_where_the_flag_or_tritons_variable_or_the_system_says() {
        let of = |flag: Option<&str>, given: &[(&str, &str)], kind| {
            let mut settings = StoreSettings { cache: flag.map(PathBuf::from), ..StoreSettings::default() };
            let variable =
                |name: &str| given.iter().find(|(have, _)| *have == name).map(|(_, value)| OsString::from(value));
            settings.apply(&variable);
            settings.cache_of(kind).display().to_string()
        };
        let mounts = [("TRITON_AWS_MOUNT_DIRECTORY", "/aws"), ("TRITON_GCS_MOUNT_DIRECTORY", "/gcs"), ("HOME", "/h")];
        assert_eq!(of(Some("/flag"), &mounts, StoreKind::S3), "/flag");
        assert_eq!(of(None, &mounts, StoreKind::S3), "/aws");
        assert_eq!(of(None, &mounts, StoreKind::Gcs), "/gcs");
        assert_eq!(of(None, &mounts, StoreKind::Azure), "/h/.cache/deuteron/stores");
        let unit = [("CACHE_DIRECTORY", "/var/cache/d"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(of(None, &unit, StoreKind::S3), "/var/cache/d/stores");
        assert_eq!(of(None, &unit[1..], StoreKind::Http), "/x/deuteron/stores");
        assert_eq!(of(None, &[("HOME", "")], StoreKind::S3), "/var/cache/deuteron/stores");
    }

    fn read(url: &str) -> Option<Result<StoreUrl, String>> {
        StoreUrl::read(Path::new(url))
    }
}
