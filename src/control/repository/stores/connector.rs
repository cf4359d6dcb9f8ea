//! The parts of a store's answers that are read before `object_store` gets them: a temporary
//! refusal, with the wait that the store asks for, and the checksums that only headers have.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, HeaderMap};

use crate::wire::base64;

/// Makes the clients of a store.
#[derive(Debug)]
pub struct StoreConnector;

impl HttpConnector for StoreConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(WatchedService { inner }))
    }
}

/// An answer of a store that it cannot serve now.
#[derive(Clone, Copy, Debug)]
pub struct StoreRefusal {
    /// The status.
    pub status: u16,
    /// The wait that it asks for.
    pub wait: Option<Duration>,
}

impl fmt::Display for StoreRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "it answers with status {}", self.status)
    }
}

impl Error for StoreRefusal {}

/// The sums of the whole object in the headers of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderSums {
    /// Its MD5, in hexadecimal.
    pub md5: Option<String>,
    /// True if its ETag is not an MD5, whatever it looks like: S3 encrypts it with a key of a
    /// service or of the client.
    pub has_other_tag: bool,
}

impl HeaderSums {
    fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let encryption = text("x-amz-server-side-encryption").unwrap_or_default();
        // A range has its own sum in `Content-MD5`; these two are the object's.
        let google = headers.get_all("x-goog-hash").iter().filter_map(|value| value.to_str().ok());
        let google = google.flat_map(|value| value.split(',')).find_map(|part| part.trim().strip_prefix("md5="));
        let md5 = google.or_else(|| text("x-ms-blob-content-md5"));
        Self {
            md5: md5.and_then(hexadecimal),
            has_other_tag: encryption.starts_with("aws:kms") || text(CUSTOMER_KEY).is_some(),
        }
    }
}

const CUSTOMER_KEY: &str = "x-amz-server-side-encryption-customer-algorithm";

/// Converts an MD5 in base64, as headers have it.
fn hexadecimal(text: &str) -> Option<String> {
    let bytes = base64::decode(text).filter(|bytes| bytes.len() == 16)?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[derive(Debug)]
struct WatchedService {
    inner: HttpClient,
}

impl WatchedService {
    async fn ask(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut response = self.inner.execute(request).await?;
        let status = response.status().as_u16();
        if status == 429 || status >= 500 {
            let seconds = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
            let refusal = StoreRefusal { status, wait: seconds.map(Duration::from_secs) };
            return Err(HttpError::new(HttpErrorKind::Unknown, refusal));
        }
        let sums = HeaderSums::of(response.headers());
        response.extensions_mut().insert(sums);
        Ok(response)
    }
}

impl HttpService for WatchedService {
    // The expansion of an async function by the trait's macro.
    fn call<'life, 'future>(
        &'life self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'future>>
    where
        'life: 'future,
        Self: 'future,
    {
        Box::pin(self.ask(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_tell_the_sum_of_the_object_or_that_its_tag_is_none() {
        let of = |given: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in given {
                headers.append(*name, value.parse().unwrap());
            }
            HeaderSums::of(&headers)
        };
        let empty = Some("d41d8cd98f00b204e9800998ecf8427e".to_owned());
        let goog = [("x-goog-hash", "crc32c=AAAAAA=="), ("x-goog-hash", "md5=1B2M2Y8AsgTpgAmY7PhCfg==")];
        assert_eq!(of(&goog).md5, empty);
        assert_eq!(of(&[("x-goog-hash", "crc32c=AAAAAA==, md5=1B2M2Y8AsgTpgAmY7PhCfg==")]).md5, empty);
        assert_eq!(of(&[("x-ms-blob-content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")]).md5, empty);
        assert_eq!(of(&[("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")]), HeaderSums::default());
        assert_eq!(of(&[("x-goog-hash", "md5=AAAA")]).md5, None);
        assert!(of(&[("x-amz-server-side-encryption", "aws:kms")]).has_other_tag);
        assert!(of(&[(CUSTOMER_KEY, "AES256")]).has_other_tag);
        assert!(!of(&[("x-amz-server-side-encryption", "AES256")]).has_other_tag);
    }
}
