//! Fetches objects of a store into files: several at a time, large ones in ranges. A range that is
//! cut goes on at the byte where it was; nothing is fetched twice. The received bytes are compared
//! with the listing and with the store's checksum.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::StreamExt;
use md5::Md5;
use object_store::{GetOptions, GetRange};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::control::repository::stores::client::{FailedRequest, MODIFIED, StoreClient, failed};
use crate::control::repository::stores::connector::HeaderSums;
use crate::control::repository::stores::fault::StoreFault;
use crate::control::repository::stores::mirror::WantedObject;
use crate::limits::STORE_ATTEMPTS_MAX;
use crate::metrics::StoreCells;
use crate::model::store::{StoreObject, md5_of_tag, plain_tag};
use crate::settings::StoreKind;

/// Bytes of a file that one connection fetches: a lost one costs only these, and each is worth its request.
const STORE_RANGE_SIZE: u64 = 8 << 20;
/// Attempts for one range, fruitful ones too: single bytes at a time would hold a load forever.
const STORE_RANGE_ATTEMPTS_MAX: u32 = 64;
/// The first pause before a store is asked again; each is twice as long as the one before.
const STORE_PAUSE_MIN: Duration = Duration::from_millis(200);
/// The longest pause before a store is asked again, even if it asks for a longer one.
const STORE_PAUSE_MAX: Duration = Duration::from_secs(10);

/// The part that all fetches of one store share.
#[derive(Clone)]
pub struct StoreFetcher {
    /// The client.
    pub client: Arc<StoreClient>,
    /// Bounds the requests at a time.
    pub gate: Arc<Semaphore>,
    /// The figures of the store.
    pub cells: Arc<StoreCells>,
}

impl StoreFetcher {
    /// Fetches all of them, or none: when one fails, the others are of no use.
    ///
    /// # Errors
    /// The path of the object that failed first, and the reason.
    pub async fn fetch(&self, wanted: Vec<WantedObject>) -> Result<(), (String, StoreFault)> {
        let mut fetches = JoinSet::new();
        for WantedObject { object, file } in wanted {
            let fetcher = self.clone();
            fetches.spawn(async move {
                let outcome = fetcher.fetch_object(&object, file).await;
                outcome.map_err(|fault| (object.path, fault))
            });
        }
        // The others end with the set.
        while let Some(ended) = fetches.join_next().await {
            ended.unwrap_or_else(|_| Err((String::new(), broken())))?;
            self.cells.objects.add(1);
        }
        Ok(())
    }

    async fn fetch_object(&self, object: &StoreObject, file: File) -> Result<(), StoreFault> {
        let file = Arc::new(file);
        let mut ranges = JoinSet::new();
        let mut start = 0;
        while start < object.size {
            let end = object.size.min(start.saturating_add(STORE_RANGE_SIZE));
            let (fetcher, object, file) = (self.clone(), object.clone(), Arc::clone(&file));
            ranges.spawn(async move {
                let _permit = fetcher.gate.acquire().await.map_err(|_| broken())?;
                fetcher.fetch_range(&object, &file, start, end).await
            });
            start = end;
        }
        let mut sums = HeaderSums::default();
        while let Some(ended) = ranges.join_next().await {
            sums = ended.unwrap_or_else(|_| Err(broken()))?;
        }
        let Some(expected) = ExpectedSum::of(self.client.url.kind, object, &sums) else { return Ok(()) };
        let checked = tokio::task::spawn_blocking(move || expected.check(&file)).await;
        checked.unwrap_or_else(|_| Err(broken()))
    }

    async fn fetch_range(
        &self,
        object: &StoreObject,
        file: &File,
        start: u64,
        end: u64,
    ) -> Result<HeaderSums, StoreFault> {
        let mut at = start;
        let (mut in_vain, mut attempts) = (0, 0);
        loop {
            let before = at;
            let outcome = self.read(object, file, &mut at, end).await;
            let failed = match outcome {
                Ok(sums) if at == end => return Ok(sums),
                Ok(_) => StoreFault::Away("the connection ended before the file".to_owned()).into(),
                Err(failed) => failed,
            };
            attempts += 1;
            in_vain = if at > before { 1 } else { in_vain + 1 };
            let is_over = in_vain >= STORE_ATTEMPTS_MAX || attempts >= STORE_RANGE_ATTEMPTS_MAX;
            if is_over || !failed.fault.is_passing() {
                return Err(failed.fault);
            }
            self.cells.retries.add(1);
            tokio::time::sleep(pause(in_vain, failed.wait)).await;
        }
    }

    /// Reads from `at` on, which moves with the received bytes.
    async fn read(
        &self,
        object: &StoreObject,
        file: &File,
        at: &mut u64,
        end: u64,
    ) -> Result<HeaderSums, FailedRequest> {
        let path = self.client.path(&object.path)?;
        let tag = has_tag(self.client.url.kind, object).then(|| plain_tag(&object.tag));
        // A whole file is asked for as such: not every server knows ranges.
        let is_whole = *at == 0 && end == object.size;
        let range = (!is_whole).then_some(GetRange::Bounded(*at..end));
        let if_match = tag.map(|tag| format!("\"{tag}\""));
        let found = self.client.store.get_opts(&path, GetOptions { range, if_match, ..GetOptions::default() }).await;
        let mut found = found.map_err(|error| failed(&error))?;
        if let (Some(tag), Some(have)) = (tag, &found.meta.e_tag)
            && plain_tag(have) != tag
        {
            return Err(StoreFault::Changed.into());
        }
        let (size, listed) = (found.meta.size, object.size);
        if size != listed {
            return Err(StoreFault::Damaged(format!("{listed} bytes were listed, and {size} would come")).into());
        }
        let sums = found.extensions.remove::<HeaderSums>().unwrap_or_default();
        let mut body = found.into_stream();
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| failed(&error))?;
            let next = at.saturating_add(piece.len() as u64);
            if next > end {
                return Err(StoreFault::Damaged("more bytes come than were asked for".to_owned()).into());
            }
            file.write_all_at(&piece, *at).map_err(|error| StoreFault::of_disk(&error))?;
            self.cells.bytes.add(piece.len() as u64);
            *at = next;
        }
        Ok(sums)
    }
}

/// Returns true if an object is known by an ETag, which the store itself compares too.
fn has_tag(kind: StoreKind, object: &StoreObject) -> bool {
    kind != StoreKind::Http && !object.tag.starts_with(MODIFIED)
}

/// Returns the wait after `attempts` attempts in vain; the store may ask for longer.
pub fn pause(attempts: u32, asked: Option<Duration>) -> Duration {
    let ladder = STORE_PAUSE_MIN.saturating_mul(1 << attempts.saturating_sub(1).min(16));
    ladder.max(asked.unwrap_or_default()).min(STORE_PAUSE_MAX)
}

/// Returns the fault of a task that panicked: its panic was logged.
fn broken() -> StoreFault {
    StoreFault::Invalid("a fetch ended before it was done".to_owned())
}

/// The expected checksum of a file.
#[derive(Debug, PartialEq, Eq)]
enum ExpectedSum {
    Md5(String),
    Sha256(String),
}

impl ExpectedSum {
    /// Returns the strongest known one. An object of S3 that was written in parts has none that we
    /// could compute.
    fn of(kind: StoreKind, object: &StoreObject, sums: &HeaderSums) -> Option<Self> {
        if !object.sha256.is_empty() {
            return Some(Self::Sha256(object.sha256.clone()));
        }
        let of_tag = || md5_of_tag(&object.tag).filter(|_| kind == StoreKind::S3 && !sums.has_other_tag);
        // An empty object was not requested.
        sums.md5.clone().or_else(of_tag).filter(|_| object.size > 0).map(Self::Md5)
    }

    fn check(&self, file: &File) -> Result<(), StoreFault> {
        let (name, want, got) = match self {
            Self::Md5(want) => ("MD5", want, digest::<Md5>(file)),
            Self::Sha256(want) => ("SHA-256", want, digest::<Sha256>(file)),
        };
        let got = got.map_err(|error| StoreFault::of_disk(&error))?;
        if got == *want {
            Ok(())
        } else {
            Err(StoreFault::Damaged(format!("its {name} is {got}, and should be {want}")))
        }
    }
}

/// Bytes that are hashed at a time.
const PIECE_SIZE: usize = 64 << 10;

fn digest<D: Digest>(mut file: &File) -> io::Result<String> {
    file.rewind()?;
    let (mut state, mut piece) = (D::new(), vec![0; PIECE_SIZE]);
    loop {
        let size = file.read(&mut piece)?;
        match piece.get(..size) {
            None | Some([]) => break,
            Some(read) => state.update(read),
        }
    }
    Ok(state.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_are_as_long_as_the_store_asks_within_bounds() {
        let millis = |attempts, asked: Option<u64>| pause(attempts, asked.map(Duration::from_millis)).as_millis();
        assert_eq!([1, 2, 3, 40].map(|attempts| millis(attempts, None)), [200, 400, 800, 10_000]);
        assert_eq!((millis(1, Some(3_000)), millis(1, Some(60_000)), millis(3, Some(1))), (3_000, 10_000, 800));
    }

    #[test]
    fn the_sum_that_a_file_must_have_is_the_strongest_that_is_known() {
        let md5 = "d41d8cd98f00b204e9800998ecf8427e";
        let object = |tag: &str, sha256: &str| StoreObject {
            size: 1,
            tag: tag.into(),
            sha256: sha256.into(),
            ..Default::default()
        };
        let plain = HeaderSums::default();
        let told = HeaderSums { md5: Some("m".into()), has_other_tag: false };
        let sealed = HeaderSums { md5: None, has_other_tag: true };
        let of = |kind, object: &StoreObject, sums| ExpectedSum::of(kind, object, sums);
        let is = |text: &str| Some(ExpectedSum::Md5(text.to_owned()));
        assert_eq!(of(StoreKind::S3, &object(md5, ""), &plain), is(md5));
        assert_eq!(of(StoreKind::S3, &object(md5, ""), &sealed), None, "encrypted with a key of a service");
        assert_eq!(of(StoreKind::S3, &object("d41d8cd98f00b204e9800998ecf8427e-2", ""), &plain), None, "in parts");
        assert_eq!(of(StoreKind::Azure, &object(md5, ""), &plain), None, "an ETag of Azure is no sum");
        assert_eq!(of(StoreKind::Gcs, &object(md5, ""), &told), is("m"));
        assert_eq!(of(StoreKind::Http, &object("s", "s"), &plain), Some(ExpectedSum::Sha256("s".into())));
    }
}
