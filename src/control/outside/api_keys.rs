//! The file of API keys (`--api-keys-file`), and keys for it. `protocol::keys` defines its meaning.

use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::control::outside::watched_files::{WatchedFiles, read_file};
use crate::error::Error;
use crate::limits::API_KEYS_FILE_SIZE_MAX;
use crate::log;
use crate::protocol::keys::file::KeyFile;
use crate::protocol::keys::{KeyDigest, KeyTable};
use crate::settings::NewKey;
use crate::shard::ServerContext;
use crate::shard::mailbox::ShardNews;
use crate::wire::base64;

/// The keys of a server.
pub struct ApiKeys {
    path: PathBuf,
    /// The contents of the file at start.
    file: KeyFile,
    /// The clients that the shards have, if they differ from those of the start.
    table: Option<Arc<KeyTable>>,
    /// The text that was read last.
    text: Result<String, String>,
    hasher: RandomState,
}

impl ApiKeys {
    /// Reads the file.
    ///
    /// # Errors
    /// `InvalidArgument` when it cannot be read, or is not a file of keys.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = read(path);
        let file = text.as_deref().map_err(Clone::clone).and_then(|text| key_file(path, text));
        let file = file.map_err(Error::invalid)?;
        warn_of_readers(path);
        Ok(Self { path: path.to_owned(), file, table: None, text, hasher: RandomState::new() })
    }

    /// Returns the clients of the start.
    pub fn table(&self, shards: usize) -> KeyTable {
        KeyTable::new(&self.file, None, shards)
    }
}

impl WatchedFiles for ApiKeys {
    fn read(&mut self) {
        self.text = read(&self.path);
    }

    fn fingerprint(&self) -> u64 {
        self.hasher.hash_one(&self.text)
    }

    fn apply(&mut self, server_context: &ServerContext) {
        let (mailboxes, reloads) = (&server_context.control_link.mailboxes, &server_context.keys.reloads);
        match self.text.as_deref().map_err(Clone::clone).and_then(|text| key_file(&self.path, text)) {
            Ok(file) => {
                let before = self.table.as_ref().or(server_context.keys.initial.as_ref());
                let table = Arc::new(KeyTable::new(&file, before.map(|table| &**table), mailboxes.len()));
                mailboxes.iter().for_each(|mailbox| mailbox.push(ShardNews::Keys(Arc::clone(&table))));
                let count = file.entries.len();
                log::info(&format!("the file of API keys has changed: {count} clients have keys from now on"));
                self.table = Some(table);
                reloads.succeeded.add(1);
                warn_of_readers(&self.path);
            }
            Err(text) => {
                reloads.failed.add(1);
                log::error(&format!(
                    "the file of API keys has changed, and is refused: {text}; the previous keys stay in use"
                ));
            }
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    let read = read_file(path, API_KEYS_FILE_SIZE_MAX)
        .and_then(|contents| String::from_utf8(contents).map_err(|_| "is no text in UTF-8".to_owned()));
    read.map_err(|why| format!("--api-keys-file '{}' {why}", path.display()))
}

fn key_file(path: &Path, text: &str) -> Result<KeyFile, String> {
    KeyFile::read(text).map_err(|why| format!("--api-keys-file '{}', {why}", path.display()))
}

/// Warns if others can read the file: the digest of a key that a person has chosen can be guessed.
fn warn_of_readers(path: &Path) {
    if path.metadata().is_ok_and(|file| file.permissions().mode() & 0o006 != 0) {
        log::warning(&format!(
            "--api-keys-file '{}' can be read or written by every user of this machine: chmod 0640",
            path.display()
        ));
    }
}

/// Makes a new key, and its entry for the file.
///
/// # Errors
/// If the system has no random numbers.
pub fn make_key(new: &NewKey) -> Result<(String, String), String> {
    let mut bytes = [0; 32];
    let size = getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| format!("no random numbers: {error}"))?;
    if size != bytes.len() {
        return Err("the system gave too few random numbers".to_owned());
    }
    // In the alphabet of URLs (RFC 4648 §5).
    let key = format!("dt_{}", base64::encode(&bytes).replace('+', "-").replace('/', "_"));
    let classes: Vec<_> = new.classes.iter().map(|class| format!("\"{}\"", class.name())).collect();
    let entry = format!(
        "[[key]]\nname = \"{}\"\nsha256 = \"{}\"\nclasses = [{}]\n",
        new.name,
        KeyDigest::of_key(key.as_bytes()).hex(),
        classes.join(", ")
    );
    Ok((key, entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::KeyClass;

    #[test]
    fn a_new_key_opens_what_its_entry_says_and_no_two_are_alike() {
        let new = NewKey { name: "a".to_owned(), classes: vec![KeyClass::Infer, KeyClass::Read] };
        let ((key, entry), (other, _)) = (make_key(&new).unwrap(), make_key(&new).unwrap());
        assert!(key.len() == 46 && key.starts_with("dt_") && key != other, "{key} {other}");
        assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{key}");
        let table = KeyTable::new(&KeyFile::read(&entry).unwrap(), None, 1);
        let (client, _) = table.find(key.as_bytes()).unwrap();
        assert_eq!(client.name(), "a");
        assert!(client.has(KeyClass::Infer) && client.has(KeyClass::Read) && !client.has(KeyClass::Admin));
        assert!(table.find(other.as_bytes()).is_none());
    }
}
