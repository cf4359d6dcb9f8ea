//! The client of one store: made from its URL, the settings, and the identities that the machine has. Lists; `fetch` reads.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path as ObjectPath;
use object_store::{ClientOptions, GetOptions, ObjectMeta, ObjectStore, RetryConfig};

use crate::control::repository::stores::connector::{StoreConnector, StoreRefusal};
use crate::control::repository::stores::fault::StoreFault;
use crate::control::repository::stores::mirror::StoreNames;
use crate::model::store::credentials::{self, StoreCredentials};
use crate::model::store::http_index::{self, INDEX_NAME};
use crate::model::store::{StoreObject, group_of};
use crate::settings::{StoreKind, StoreSettings, StoreUrl};

/// Objects of one store that are listed: as many names as the largest repositories have, and a listing that takes seconds.
const STORE_OBJECTS_MAX: usize = 262_144;
/// Bytes of an index of a store: the largest number of objects, with long names.
const STORE_INDEX_SIZE_MAX: usize = 128 << 20;
/// Bytes of Triton's file of credentials: hundreds of stores.
const STORE_CREDENTIALS_SIZE_MAX: usize = 1 << 20;

/// The client of one store.
pub struct StoreClient {
    /// The URL of the repository.
    pub url: StoreUrl,
    /// The implementation of its protocol.
    pub store: Arc<dyn ObjectStore>,
}

/// The reason that a request failed, and the wait that the store asks for before the next.
#[derive(Debug)]
pub struct FailedRequest {
    /// The reason.
    pub fault: StoreFault,
    /// The wait.
    pub wait: Option<Duration>,
}

impl From<StoreFault> for FailedRequest {
    fn from(fault: StoreFault) -> Self {
        Self { fault, wait: None }
    }
}

impl StoreClient {
    /// Makes the client, with credentials of Triton's file if it has some, else with those of the environment or of the
    /// machine.
    ///
    /// # Errors
    /// `Invalid` for a file or settings that cannot be used.
    pub fn new(url: &StoreUrl, settings: &StoreSettings) -> Result<Self, StoreFault> {
        let found = find_credentials(url, settings)?;
        let options = options(url, settings);
        let built = match url.kind {
            StoreKind::Azure => azure(url, settings, found, options),
            StoreKind::Gcs => gcs(url, found, options)?,
            StoreKind::Http => HttpBuilder::new()
                .with_url(&url.endpoint)
                .with_retry(no_retries())
                .with_client_options(options)
                .with_http_connector(StoreConnector)
                .build()
                .map(|store| Arc::new(store) as Arc<dyn ObjectStore>),
            StoreKind::S3 => s3(url, found, options)?,
        };
        let store =
            built.map_err(|error| StoreFault::Invalid(format!("its client cannot be made: {}", root_text(&error))))?;
        Ok(Self { url: url.clone(), store })
    }

    /// Lists all objects beneath a directory of the repository.
    ///
    /// # Errors
    /// The reason that they cannot be listed.
    pub async fn list(&self, directory: &str) -> Result<Vec<StoreObject>, FailedRequest> {
        if self.url.kind == StoreKind::Http {
            let mut all = self.http_index().await?;
            all.retain(|object| directory.is_empty() || group_of(&object.path) == directory);
            return Ok(all);
        }
        let prefix = self.path(directory)?;
        let mut listing = self.store.list(Some(&prefix).filter(|prefix| !prefix.as_ref().is_empty()));
        let mut all = Vec::new();
        while let Some(found) = listing.next().await {
            let found = found.map_err(|error| failed(&error))?;
            if all.len() == STORE_OBJECTS_MAX {
                let why = format!("it has more than {STORE_OBJECTS_MAX} objects; name a longer path of the bucket");
                return Err(StoreFault::Invalid(why).into());
            }
            all.extend(self.object(&found));
        }
        Ok(all)
    }

    /// Returns the names in the repository.
    ///
    /// # Errors
    /// The reason that they cannot be listed.
    pub async fn names(&self) -> Result<StoreNames, FailedRequest> {
        let mut names = StoreNames::default();
        if self.url.kind == StoreKind::Http {
            for object in self.http_index().await? {
                match group_of(&object.path) {
                    "" => names.files.push(object.path),
                    group => names.directories.push(group.to_owned()),
                }
            }
            names.directories.sort();
            names.directories.dedup();
            return Ok(names);
        }
        let prefix = self.path("")?;
        let prefix = Some(&prefix).filter(|prefix| !prefix.as_ref().is_empty());
        let found = self.store.list_with_delimiter(prefix).await.map_err(|error| failed(&error))?;
        let name = |path: &ObjectPath| path.filename().map(str::to_owned);
        names.directories.extend(found.common_prefixes.iter().filter_map(name));
        names.files.extend(found.objects.iter().filter_map(|object| name(&object.location)));
        Ok(names)
    }

    /// Returns the path of an object for the client.
    ///
    /// # Errors
    /// `Invalid` for a path that the client cannot have.
    pub fn path(&self, path: &str) -> Result<ObjectPath, StoreFault> {
        ObjectPath::parse(self.url.key(path))
            .map_err(|_| StoreFault::Invalid("its path cannot be asked for".to_owned()))
    }

    fn object(&self, found: &ObjectMeta) -> Option<StoreObject> {
        let key = found.location.as_ref();
        let path = match self.url.prefix.as_str() {
            "" => key,
            prefix => key.strip_prefix(prefix)?.strip_prefix('/')?,
        };
        let written = || format!("{MODIFIED}{}", found.last_modified.timestamp_millis());
        let tag = found.e_tag.clone().unwrap_or_else(written);
        Some(StoreObject { path: path.to_owned(), size: found.size, tag, sha256: String::new() })
    }

    async fn http_index(&self) -> Result<Vec<StoreObject>, FailedRequest> {
        let path = self.path(INDEX_NAME)?;
        let found = self.store.get_opts(&path, GetOptions::default()).await.map_err(|error| failed(&error))?;
        let (mut body, mut text) = (found.into_stream(), Vec::new());
        while let Some(piece) = body.next().await {
            text.extend_from_slice(&piece.map_err(|error| failed(&error))?);
            if text.len() > STORE_INDEX_SIZE_MAX {
                let why = format!("its {INDEX_NAME} has more than {STORE_INDEX_SIZE_MAX} bytes");
                return Err(StoreFault::Invalid(why).into());
            }
        }
        http_index::decode(&text).map_err(|error| StoreFault::Invalid(error.text().to_owned()).into())
    }
}

/// The beginning of a tag that is not an ETag.
pub const MODIFIED: &str = "modified ";

/// Attempts are counted, and received bytes kept, by their callers in `fetch` and `thread`.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn options(url: &StoreUrl, settings: &StoreSettings) -> ClientOptions {
    let options = ClientOptions::new()
        // The operator has named the scheme of the server; a store's own is HTTPS.
        .with_allow_http(true)
        // Models may take any time, as long as bytes come.
        .with_timeout_disabled()
        .with_connect_timeout(settings.silence_max)
        .with_read_timeout(settings.silence_max);
    // Without TLS a machine needs no certificates: small images have none.
    if url.is_plain() { options.with_no_system_certificates(true) } else { options }
}

fn find_credentials(url: &StoreUrl, settings: &StoreSettings) -> Result<Option<StoreCredentials>, StoreFault> {
    let Some(path) = &settings.credentials else { return Ok(None) };
    let of_file =
        |why: String| StoreFault::Invalid(format!("the file of TRITON_CLOUD_CREDENTIAL_PATH cannot be read: {why}"));
    let size = fs::metadata(path).map_err(|error| of_file(error.to_string()))?.len();
    if size > STORE_CREDENTIALS_SIZE_MAX as u64 {
        return Err(of_file(format!("it has more than {STORE_CREDENTIALS_SIZE_MAX} bytes")));
    }
    let text = fs::read(path).map_err(|error| of_file(error.to_string()))?;
    let kind = match url.kind {
        StoreKind::Azure => "as",
        StoreKind::Gcs => "gs",
        StoreKind::Http => "https",
        StoreKind::S3 => "s3",
    };
    credentials::find(&text, kind, &url.text).map_err(|error| StoreFault::Invalid(error.text().to_owned()))
}

type Built = object_store::Result<Arc<dyn ObjectStore>>;

fn s3(url: &StoreUrl, found: Option<StoreCredentials>, options: ClientOptions) -> Result<Built, StoreFault> {
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(&url.bucket)
        .with_retry(no_retries())
        .with_client_options(options)
        .with_http_connector(StoreConnector);
    if !url.endpoint.is_empty() {
        builder = builder.with_endpoint(&url.endpoint).with_virtual_hosted_style_request(false);
    }
    if let Some(StoreCredentials::S3 { key_id, secret_key, region, session_token, profile }) = found {
        if key_id.is_empty() && !profile.is_empty() {
            let why = "TRITON_CLOUD_CREDENTIAL_PATH names a profile of AWS, and profiles are not read; give key_id and \
                       secret_key there, or let the environment or the machine have the identity";
            return Err(StoreFault::Invalid(why.to_owned()));
        }
        if !key_id.is_empty() {
            builder = builder.with_access_key_id(key_id).with_secret_access_key(secret_key);
            // Also an empty one: a token of the environment belongs to another key.
            builder = builder.with_token(session_token);
        }
        if !region.is_empty() {
            builder = builder.with_region(region);
        }
    }
    Ok(builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>))
}

fn gcs(url: &StoreUrl, found: Option<StoreCredentials>, options: ClientOptions) -> Result<Built, StoreFault> {
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(&url.bucket)
        .with_retry(no_retries())
        .with_client_options(options)
        .with_http_connector(StoreConnector);
    if let Some(StoreCredentials::Gcs(path)) = found {
        let text = fs::read_to_string(Path::new(&path)).map_err(|error| {
            StoreFault::Invalid(format!(
                "the key of Google's that TRITON_CLOUD_CREDENTIAL_PATH names cannot be read: {error}"
            ))
        })?;
        // A key of a service account, or the file that Google's tools keep for a person.
        let is_key = text.contains("\"private_key\"");
        builder =
            if is_key { builder.with_service_account_key(text) } else { builder.with_application_credentials(path) };
    }
    Ok(builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>))
}

fn azure(url: &StoreUrl, settings: &StoreSettings, found: Option<StoreCredentials>, options: ClientOptions) -> Built {
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_account(&url.account)
        .with_container_name(&url.bucket)
        .with_retry(no_retries())
        .with_client_options(options)
        .with_http_connector(StoreConnector);
    match found {
        Some(StoreCredentials::Azure { key, client_id, .. }) => {
            if !key.is_empty() {
                builder = builder.with_access_key(key);
            }
            if !client_id.is_empty() {
                builder = builder.with_client_id(client_id);
            }
        }
        // Triton's name, which the client does not know.
        _ if !settings.azure_key.reveal().is_empty() => builder = builder.with_access_key(settings.azure_key.reveal()),
        _ => {}
    }
    builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
}

/// Returns the reason that a request failed. Of the client's text, which may have a signed URL,
/// only the code of the store is taken.
pub fn failed(error: &object_store::Error) -> FailedRequest {
    let mut chain = sources(error);
    if let Some(refusal) = chain.find_map(|error| error.downcast_ref::<StoreRefusal>()) {
        let fault = match refusal.status {
            429 | 503 => StoreFault::Throttled(refusal.status),
            _ => StoreFault::Away(refusal.to_string()),
        };
        return FailedRequest { fault, wait: refusal.wait };
    }
    let text = error.to_string();
    let code = code_of(&text);
    // A listing has only its text.
    let has_status = |status: &str| text.contains(&format!("status code: {status}"));
    match error {
        object_store::Error::NotFound { .. } => StoreFault::Missing(code),
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            StoreFault::Denied(code)
        }
        object_store::Error::Precondition { .. } => StoreFault::Changed,
        object_store::Error::InvalidPath { .. } => StoreFault::Invalid(
            "it has an object whose name is no path of a file ('..', an empty part); remove it from the store"
                .to_owned(),
        ),
        _ if METADATA_SERVERS.iter().any(|server| text.contains(server)) => {
            StoreFault::Denied("there are no credentials, and the machine has no identity".to_owned())
        }
        _ if has_status("401") || has_status("403") || KEY_FAULTS.contains(&code.as_str()) => StoreFault::Denied(code),
        _ if has_status("404") => StoreFault::Missing(code),
        _ if text.contains("Received redirect") => StoreFault::Missing("it is in another region".to_owned()),
        _ if text.contains("non-partial response") => {
            StoreFault::Invalid("its server does not serve ranges of files, which large ones need".to_owned())
        }
        _ if text.contains("non-2xx status") => StoreFault::Invalid(format!("the store refuses the request ({code})")),
        _ => StoreFault::Away(away_text(error)),
    }
    .into()
}

/// Returns the reasons beneath an error, the innermost last.
fn sources(error: &object_store::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    fn next<'a>(error: &&'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
        let error = *error;
        error.source()
    }
    std::iter::successors(error.source(), next)
}

/// The addresses at which the clients ask for the identity of the machine.
const METADATA_SERVERS: [&str; 4] = ["169.254.169.254", "169.254.170.", "metadata.google", "metadata/identity"];

/// The names that S3 and Azure give, with status 400, to an invalid or expired key.
const KEY_FAULTS: [&str; 4] =
    ["AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAuthenticationInfo", "InvalidToken"];

/// Returns the code in the XML of a store's answer.
fn code_of(text: &str) -> String {
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map_or("", |(code, _)| code);
    if code.len() < 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        code.to_owned()
    } else {
        String::new()
    }
}

fn away_text(error: &object_store::Error) -> String {
    let mut chain = sources(error);
    match chain.find_map(|error| error.downcast_ref::<HttpError>()).map(HttpError::kind) {
        Some(HttpErrorKind::Timeout) => "nothing came in time".to_owned(),
        _ => root_text(error),
    }
}

/// Returns the innermost reason: the system's, or that of TLS. None of these has a URL.
fn root_text(error: &object_store::Error) -> String {
    let last = sources(error).last();
    let text = last.map_or_else(String::new, ToString::to_string);
    if text.is_empty() || text.contains("://") { "its client does not say why".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_answer_only_the_code_is_told() {
        let text = "403: <?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Key>secret</Key></Error>";
        assert_eq!(code_of(text), "SignatureDoesNotMatch");
        for text in ["", "<Code></Code>", "<Code>a b</Code>", "<Code>x", "</Code><Code>"] {
            assert_eq!(code_of(text), "", "{text}");
        }
        let source = || std::io::Error::other("at https://h/p?X-Amz-Signature=secret <Code>AccessDenied</Code>").into();
        let path = || "p".to_owned();
        for (error, want) in [
            (
                object_store::Error::PermissionDenied { path: path(), source: source() },
                StoreFault::Denied("AccessDenied".into()),
            ),
            (
                object_store::Error::NotFound { path: path(), source: source() },
                StoreFault::Missing("AccessDenied".into()),
            ),
            (object_store::Error::Precondition { path: path(), source: source() }, StoreFault::Changed),
            (
                object_store::Error::Generic { store: "S3", source: source() },
                StoreFault::Away("its client does not say why".into()),
            ),
            (
                object_store::Error::Generic {
                    store: "S3",
                    source: "Server returned non-2xx status code: 403 Forbidden: <Code>AccessDenied</Code>".into(),
                },
                StoreFault::Denied("AccessDenied".into()),
            ),
            (
                object_store::Error::Generic {
                    store: "S3",
                    source: Box::new(StoreRefusal { status: 503, wait: Some(Duration::from_secs(2)) }),
                },
                StoreFault::Throttled(503),
            ),
        ] {
            assert_eq!(failed(&error).fault, want);
        }
    }
}
