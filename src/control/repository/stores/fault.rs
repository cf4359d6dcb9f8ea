//! The failures of stores, and their remedies. Nothing here quotes a store's answer beyond its
//! error code: answers have signed URLs.

use std::io;

use crate::error::{Code, Error};
use crate::settings::{StoreKind, StoreUrl};

/// The reason that a part of a store could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// It cannot be reached, or does not answer in time.
    Away(String),
    /// An object has changed since it was listed.
    Changed,
    /// The received bytes differ from the listing.
    Damaged(String),
    /// The credentials are missing or insufficient; with the store's code if it gave one.
    Denied(String),
    /// Nothing can be written to the cache.
    Disk(String),
    /// Its settings, or its answer, cannot be used.
    Invalid(String),
    /// There is no such bucket or object.
    Missing(String),
    /// It asks for fewer requests.
    Throttled(u16),
}

impl StoreFault {
    /// Returns its place in [`StoreCells::REASONS`](crate::metrics::StoreCells::REASONS).
    pub const fn index(&self) -> usize {
        match self {
            Self::Away(_) => 0,
            Self::Changed => 1,
            Self::Damaged(_) => 2,
            Self::Denied(_) => 3,
            Self::Disk(_) => 4,
            Self::Invalid(_) => 5,
            Self::Missing(_) => 6,
            Self::Throttled(_) => 7,
        }
    }

    /// Returns true if the same may work in a moment.
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Throttled(_))
    }

    /// Returns a fault of the disk.
    pub fn of_disk(error: &io::Error) -> Self {
        Self::Disk(error.to_string())
    }

    /// Returns the error for the log and the client: the request, the reason, the remedy. `what` is
    /// an object, or empty for all.
    pub fn error(&self, url: &StoreUrl, what: &str) -> Error {
        let place = if what.is_empty() { url.text.clone() } else { format!("{}/{what}", url.text) };
        let coded = |text: &str, code: &str| if code.is_empty() { text.to_owned() } else { format!("{text} ({code})") };
        let (code, why) = match self {
            Self::Away(why) => (
                Code::Unavailable,
                format!(
                    "the store cannot be reached: {why}; look at its address, at proxies and at \
                         --model-store-timeout-secs"
                ),
            ),
            Self::Changed => {
                (Code::Unavailable, "it changed while it was fetched; the next load or poll fetches it anew".to_owned())
            }
            Self::Damaged(why) => (
                Code::Unavailable,
                format!(
                    "the content differs from what the store listed: {why}; it is not served, and fetched again at the \
                     next load or poll"
                ),
            ),
            Self::Denied(code) => {
                (Code::InvalidArgument, format!("{}; {}", coded("the store denies access", code), identity(url.kind)))
            }
            Self::Disk(why) => (
                Code::Internal,
                format!(
                    "the cache cannot be written: {why}; look at the directory of --model-store-cache and at its disk"
                ),
            ),
            Self::Invalid(why) => (Code::InvalidArgument, why.clone()),
            Self::Missing(code) => (
                Code::InvalidArgument,
                format!("{}; look at the name of the bucket and at the region", coded("it does not exist", code)),
            ),
            Self::Throttled(status) => (
                Code::Unavailable,
                format!(
                    "the store is overloaded or limits the request rate (status {status}); lower \
                     --model-store-connections or raise --repository-poll-secs"
                ),
            ),
        };
        Error::new(code, format!("model repository '{place}': {why}"))
    }
}

/// Returns the source of the identity for a store.
const fn identity(kind: StoreKind) -> &'static str {
    match kind {
        StoreKind::Azure => {
            "give an account and its key by AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY or by the file of \
             TRITON_CLOUD_CREDENTIAL_PATH, or let the machine's identity read the container (Storage Blob Data Reader)"
        }
        StoreKind::Gcs => {
            "give a key by GOOGLE_APPLICATION_CREDENTIALS or by the file of TRITON_CLOUD_CREDENTIAL_PATH, or let the \
             machine's service account list and get objects of the bucket (Storage Object Viewer)"
        }
        StoreKind::Http => "the server must let index.json and the files of models be read without a login",
        StoreKind::S3 => {
            "give a key by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or by the file of TRITON_CLOUD_CREDENTIAL_PATH, or \
             let the machine's role do s3:ListBucket and s3:GetObject on the bucket"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::metrics::StoreCells;

    #[test]
    fn a_fault_says_what_was_asked_for_and_what_to_do() {
        let url = |text: &str| StoreUrl::read(Path::new(text)).unwrap().unwrap();
        let s3 = url("s3://b/p");
        for (fault, want) in [
            (StoreFault::Away("timed out".into()), "'s3://b/p/m/1/a': the store cannot be reached: timed out; look at"),
            (StoreFault::Changed, "it changed while it was fetched"),
            (StoreFault::Damaged("7 bytes".into()), "differs from what the store listed: 7 bytes; it is not served"),
            (StoreFault::Denied("AccessDenied".into()), "the store denies access (AccessDenied); give a key by AWS_"),
            (StoreFault::Denied(String::new()), "the store denies access; give a key by AWS_ACCESS_KEY_ID"),
            (StoreFault::Disk("no space".into()), "the cache cannot be written: no space; look at the directory of"),
            (StoreFault::Missing("NoSuchBucket".into()), "it does not exist (NoSuchBucket); look at the name"),
            (StoreFault::Throttled(503), "(status 503); lower --model-store-connections"),
        ] {
            let error = fault.error(&s3, "m/1/a");
            assert!(
                error.text().contains(want) && error.text().starts_with("model repository 's3://b/p/m/1/a': "),
                "{error}"
            );
            let name = format!("{fault:?}").to_lowercase();
            assert!(name.starts_with(StoreCells::REASONS[fault.index()]), "{name}");
        }
        for (store, want) in [("gs://b", "GOOGLE_APPLICATION_CREDENTIALS"), ("as://a/c", "AZURE_STORAGE_KEY")] {
            assert!(StoreFault::Denied(String::new()).error(&url(store), "").text().contains(want), "{store}");
        }
    }
}
