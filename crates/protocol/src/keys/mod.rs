//! The clients that have API keys: the owner of each key, the classes that it gives access to, and
//! the rates and the concurrency of its owner. Made from the operator's file ([`mod@file`]), shared by
//! all shards, and replaced as a whole when the file changes; the counters of a client live on with
//! its name. Keys themselves are not stored: they are known by their SHA-256. Pure: the instant is
//! an argument. [`crate::policy`] applies it to requests.

pub mod file;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod rate;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::keys::file::KeyFile;
use crate::keys::rate::{KeyBucket, KeyRate};
use base::metrics::KeyCells;
use base::policy::KeyClass;
use base::time::Instant;

/// Bytes of a client's API key; those of `deuteron key` have 46. Hashing it takes a microsecond.
const API_KEY_SIZE_MAX: usize = 512;
/// A client's retry delay with too many requests in flight: the end of one is unknown.
const API_KEY_WAIT: Duration = Duration::from_secs(1);

/// The SHA-256 of a key, in words that are compared at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyDigest([u64; 4]);

impl KeyDigest {
    /// The digest of a key as a client sends it.
    pub fn of_key(key: &[u8]) -> Self {
        Self::of_bytes(&Sha256::digest(key).into())
    }

    /// The digest with these bytes.
    pub fn of_bytes(bytes: &[u8; 32]) -> Self {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        Self(words)
    }

    /// The digest with these 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(Self::of_bytes(&bytes))
    }

    /// Its hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|word| format!("{word:016x}")).collect()
    }

    /// All ones if the two are equal, and zero otherwise, in the same steps wherever they differ.
    fn equal_mask(&self, other: &Self) -> usize {
        // Hidden from the compiler, so that it cannot stop at the first difference.
        let difference = black_box(self.0.iter().zip(&other.0).fold(0, |all, (one, two)| all | (one ^ two)));
        // The highest bit of `d | -d` is set unless d is zero.
        let is_different = (difference | difference.wrapping_neg()) >> 63;
        usize::from(is_different == 0).wrapping_neg()
    }
}

/// The digest is not shown either: that of a weak key can be guessed.
impl std::fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyDigest")
    }
}

/// All clients that have keys, at one time.
#[derive(Debug)]
pub struct KeyTable {
    /// The index of a client by each of its keys.
    digests: Vec<(KeyDigest, usize)>,
    clients: Vec<Arc<KeyClient>>,
    /// The clients that send no key, if the file gives them any access.
    anonymous: Option<Arc<KeyClient>>,
}

impl KeyTable {
    /// Makes the table of a file's clients. A client with the name of one in the table before keeps
    /// its state: its requests in flight, the rest of its burst unless the file gives it another
    /// rate, and its counters, of which each of `shards` has its own.
    pub fn new(file: &KeyFile, before: Option<&Self>, shards: usize) -> Self {
        let client = |entry: &file::KeyEntry| {
            let known = before.into_iter().flat_map(Self::clients).find(|client| client.name == entry.name);
            let state = known.map_or_else(|| Arc::new(KeyState::new(shards)), |known| Arc::clone(&known.state));
            let same_rate = known.filter(|known| known.rate == entry.rate);
            let bucket = same_rate.map_or_else(Arc::default, |known| Arc::clone(&known.bucket));
            let same_tokens = known.filter(|known| known.token_rate == entry.token_rate);
            let tokens = same_tokens.map_or_else(Arc::default, |known| Arc::clone(&known.tokens));
            let file::KeyEntry { name, classes, rate, concurrency_max, token_rate, .. } = entry.clone();
            Arc::new(KeyClient { name, classes, rate, bucket, concurrency_max, token_rate, tokens, state })
        };
        let digests = file.entries.iter().enumerate();
        let digests = digests.flat_map(|(index, entry)| entry.digests.iter().map(move |digest| (*digest, index)));
        Self {
            digests: digests.collect(),
            clients: file.entries.iter().map(client).collect(),
            anonymous: file.anonymous.as_ref().map(client),
        }
    }

    /// The client with this key, and the key's digest.
    pub fn find(&self, key: &[u8]) -> Option<(&Arc<KeyClient>, KeyDigest)> {
        // A key of this server is shorter: a longer one need not be hashed.
        if key.len() > API_KEY_SIZE_MAX {
            return None;
        }
        let digest = KeyDigest::of_key(key);
        Some((self.find_digest(&digest)?, digest))
    }

    /// The client with the key of this digest. All digests are compared to the end, so that the
    /// time reveals nothing about them.
    pub fn find_digest(&self, digest: &KeyDigest) -> Option<&Arc<KeyClient>> {
        let found = self.digests.iter().fold(0, |found, (known, index)| found | known.equal_mask(digest) & (index + 1));
        self.clients.get(found.checked_sub(1)?)
    }

    /// The clients that send no key, if they have any access.
    pub const fn anonymous(&self) -> Option<&Arc<KeyClient>> {
        self.anonymous.as_ref()
    }

    /// All of them, in the order of the file; the clients without a key come last.
    pub fn clients(&self) -> impl Iterator<Item = &Arc<KeyClient>> + Clone {
        self.clients.iter().chain(&self.anonymous)
    }
}

/// One client, or all those without a key.
#[derive(Debug)]
pub struct KeyClient {
    name: String,
    classes: ClassSet,
    rate: Option<KeyRate>,
    bucket: Arc<KeyBucket>,
    concurrency_max: Option<u32>,
    token_rate: Option<KeyRate>,
    tokens: Arc<KeyBucket>,
    state: Arc<KeyState>,
}

impl KeyClient {
    /// Its name in errors.
    pub fn title(&self) -> String {
        if self.name == file::ANONYMOUS {
            "a client without an API key".to_owned()
        } else {
            format!("the API key '{}'", self.name)
        }
    }

    /// Its name, for logs and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if its key gives access to this class.
    pub const fn has(&self, class: KeyClass) -> bool {
        self.classes.has(class)
    }

    /// The counters of one shard for this client.
    pub fn cells(&self, shard: usize) -> Option<&KeyCells> {
        self.state.cells.get(shard)
    }

    /// Its counters, one of each shard.
    pub fn all_cells(&self) -> &[KeyCells] {
        &self.state.cells
    }

    /// The maximum number of its requests in flight, if there is one.
    pub const fn concurrency_max(&self) -> Option<u32> {
        self.concurrency_max
    }

    /// Returns true if the tokens of its texts have a rate.
    pub const fn has_token_rate(&self) -> bool {
        self.token_rate.is_some()
    }

    /// Takes tokens for a request, by an estimate.
    ///
    /// # Errors
    /// The time after which to try again; then nothing is taken.
    pub fn take_tokens(&self, estimate: u64, now: Instant) -> Result<(), Duration> {
        self.token_rate.map_or(Ok(()), |rate| self.tokens.take_many(rate, estimate, now))
    }

    /// Corrects an estimate by the count of the request's tokens: 0 if it did not run.
    pub fn correct_tokens(&self, estimate: u64, count: u64) {
        if let Some(rate) = self.token_rate {
            self.tokens.correct(rate, estimate, count);
        }
    }

    /// Begins a request. The place that it takes, if its concurrency is bounded, is given back when
    /// the grant is dropped.
    ///
    /// # Errors
    /// The bound that was reached; then nothing is taken.
    pub fn begin(self: &Arc<Self>, now: Instant) -> Result<KeyGrant, KeyBusy> {
        let mut grant = KeyGrant::default();
        if let Some(most) = self.concurrency_max {
            let next = |taken: u32| (taken < most).then_some(taken + 1);
            let taken = self.state.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
            taken.map_err(|_| KeyBusy { is_rate: false, wait: API_KEY_WAIT })?;
            grant.place = Some(Arc::clone(&self.state));
        }
        if let Some(rate) = self.rate {
            // The place is given back if this fails: a client with both bounds may be told of
            // either one, and never gets more than either allows.
            self.bucket.take(rate, now).map_err(|wait| KeyBusy { is_rate: true, wait })?;
        }
        Ok(grant)
    }
}

/// The bound that refuses a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBusy {
    /// True if its rate is too high; otherwise it has too many requests in flight.
    pub is_rate: bool,
    /// The time after which to try again.
    pub wait: Duration,
}

/// The state of a client that outlives a table; found by its name.
#[derive(Debug)]
struct KeyState {
    in_flight: AtomicU32,
    cells: Box<[KeyCells]>,
}

impl KeyState {
    fn new(shards: usize) -> Self {
        Self { in_flight: AtomicU32::new(0), cells: (0..shards).map(|_| KeyCells::default()).collect() }
    }
}

/// A request that was let in, until it is dropped. Most hold nothing: only clients with a bound
/// take a place.
#[derive(Debug, Default)]
pub struct KeyGrant {
    place: Option<Arc<KeyState>>,
}

impl Drop for KeyGrant {
    fn drop(&mut self) {
        if let Some(state) = &self.place {
            state.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The classes that a key gives access to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassSet(u8);

impl ClassSet {
    /// Adds a class. Access to `Read` includes the metrics.
    pub const fn add(&mut self, class: KeyClass) {
        self.0 |= 1 << class as u8;
        if let KeyClass::Read = class {
            self.0 |= 1 << KeyClass::Metrics as u8;
        }
    }

    /// Returns true if it has a class.
    pub const fn has(self, class: KeyClass) -> bool {
        self.0 & 1 << class as u8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str, before: Option<&KeyTable>) -> KeyTable {
        KeyTable::new(&KeyFile::read(text).unwrap(), before, 2)
    }

    fn entry(name: &str, keys: &[&str], more: &str) -> String {
        let digests: Vec<_> =
            keys.iter().map(|key| format!("\"{}\"", KeyDigest::of_key(key.as_bytes()).hex())).collect();
        format!("[[key]]\nname = \"{name}\"\nsha256 = [{}]\nclasses = [\"infer\"]\n{more}\n", digests.join(","))
    }

    #[test]
    fn a_digest_is_that_of_sha_256() {
        // FIPS 180-2, appendix B.1.
        let want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyDigest::of_key(b"abc").hex(), want);
        assert_eq!(KeyDigest::from_hex(&want.to_uppercase()), Some(KeyDigest::of_key(b"abc")));
        for wrong in ["", &want[1..], &format!("{want}0"), &want.replace('b', "g"), &want.replace("ba", "+a")] {
            assert_eq!(KeyDigest::from_hex(wrong), None, "{wrong}");
        }
        assert_eq!(format!("{:?}", KeyDigest::of_key(b"abc")), "KeyDigest");
    }

    #[test]
    fn digests_that_differ_anywhere_differ() {
        let digest = KeyDigest::of_key(b"abc");
        assert_eq!(digest.equal_mask(&digest), usize::MAX);
        for word in 0..4 {
            for bit in 0..64 {
                let mut other = digest;
                other.0[word] ^= 1 << bit;
                assert_eq!(digest.equal_mask(&other), 0, "word {word}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_client_is_found_by_each_of_its_keys_and_by_nothing_else() {
        let table = table(&(entry("a", &["k1"], "") + &entry("b", &["k2", "k3"], "")), None);
        let name = |key: &str| table.find(key.as_bytes()).map(|(client, _)| client.name().to_owned());
        for (key, want) in
            [("k1", Some("a")), ("k2", Some("b")), ("k3", Some("b")), ("k", None), ("", None), ("k11", None)]
        {
            assert_eq!(name(key).as_deref(), want, "{key}");
        }
        let long = "k".repeat(API_KEY_SIZE_MAX + 1);
        let of_long = KeyTable::new(&KeyFile::read(&entry("a", &[&long], "")).unwrap(), None, 1);
        assert!(of_long.find(long.as_bytes()).is_none(), "more than a key may have");
        assert!(table.anonymous().is_none());
    }

    #[test]
    fn no_more_requests_are_in_flight_than_a_client_may_have() {
        let table = table(&entry("a", &["k"], "concurrency = 2"), None);
        let client = table.find(b"k").unwrap().0;
        let begin = || client.begin(Instant::ZERO);
        let (one, two) = (begin().unwrap(), begin().unwrap());
        assert_eq!(begin().unwrap_err(), KeyBusy { is_rate: false, wait: API_KEY_WAIT });
        drop(one);
        let three = begin().unwrap();
        assert!(begin().is_err());
        drop((two, three));
        assert!(begin().is_ok());
    }

    #[test]
    fn a_request_beyond_its_rate_takes_no_place() {
        let table = table(&entry("a", &["k"], "rate = 1\nconcurrency = 1"), None);
        let client = table.find(b"k").unwrap().0;
        let at = |seconds: u64| Instant::from_micros(seconds * 1_000_000);
        drop(client.begin(at(1)).unwrap());
        assert_eq!(client.begin(at(1)).unwrap_err(), KeyBusy { is_rate: true, wait: Duration::from_secs(1) });
        assert!(client.begin(at(2)).is_ok());
    }

    #[test]
    fn what_a_client_has_taken_outlives_its_table() {
        let first = table(&(entry("a", &["k"], "concurrency = 1") + &entry("gone", &["g"], "")), None);
        let held = first.find(b"k").unwrap().0.begin(Instant::ZERO).unwrap();
        let second = table(&(entry("b", &["g"], "") + &entry("a", &["new"], "concurrency = 1")), Some(&first));
        drop(first);
        assert!(second.find(b"k").is_none() && second.clients().all(|client| client.name() != "gone"));
        let client = second.find(b"new").unwrap().0;
        assert!(client.begin(Instant::ZERO).is_err(), "its request from before is in flight");
        drop(held);
        assert!(client.begin(Instant::ZERO).is_ok());
    }

    #[test]
    fn tokens_have_a_bucket_of_their_own_that_outlives_the_table() {
        let first = table(&(entry("a", &["k"], "token_rate = 1\ntoken_burst = 5") + &entry("b", &["l"], "")), None);
        let take = |table: &KeyTable, count| table.find(b"k").unwrap().0.take_tokens(count, Instant::ZERO);
        assert_eq!((take(&first, 3), take(&first, 3)), (Ok(()), Ok(())));
        assert_eq!(take(&first, 3), Err(Duration::from_secs(2)));
        assert!(first.find(b"k").unwrap().0.begin(Instant::ZERO).is_ok(), "its requests have no rate");
        let same = table(&entry("a", &["k"], "token_rate = 1\ntoken_burst = 5"), Some(&first));
        assert_eq!(take(&same, 3), Err(Duration::from_secs(2)));
        same.find(b"k").unwrap().0.correct_tokens(6, 4);
        assert_eq!(take(&same, 3), Ok(()));
        let raised = table(&entry("a", &["k"], "token_rate = 2\ntoken_burst = 5"), Some(&same));
        assert_eq!(take(&raised, 3), Ok(()));
        let free = first.find(b"l").unwrap().0;
        assert!(!free.has_token_rate() && free.take_tokens(u64::MAX, Instant::ZERO).is_ok());
        free.correct_tokens(1, 2);
    }

    #[test]
    fn a_rate_that_was_changed_holds_at_once() {
        let passes =
            |table: &KeyTable| (0..9).filter(|_| table.find(b"k").unwrap().0.begin(Instant::ZERO).is_ok()).count();
        let first = table(&entry("a", &["k"], "rate = 1\nburst = 5"), None);
        assert_eq!(passes(&first), 5);
        let same = table(&entry("a", &["k"], "rate = 1\nburst = 5"), Some(&first));
        assert_eq!(passes(&same), 0, "its burst is used up");
        let raised = table(&entry("a", &["k"], "rate = 2\nburst = 7"), Some(&same));
        assert_eq!(passes(&raised), 7);
    }

    #[test]
    fn whoever_may_read_may_read_the_metrics() {
        let has = |classes: &[KeyClass]| {
            let mut set = ClassSet::default();
            classes.iter().for_each(|class| set.add(*class));
            KeyClass::ALL.into_iter().filter(|class| set.has(*class)).map(KeyClass::name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(has(&[]), "");
        assert_eq!(has(&[KeyClass::Read]), "metrics read");
        assert_eq!(has(&[KeyClass::Metrics]), "metrics");
        assert_eq!(has(&[KeyClass::Admin, KeyClass::Infer]), "admin infer");
    }
}
