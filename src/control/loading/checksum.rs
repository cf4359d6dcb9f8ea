//! Triton's repository agent `checksum`, built in: files of a model's directory must have the MD5
//! that its configuration states. They are read before anything of the model is loaded, and the
//! load fails if one of them is not the same file, unwritten since, when an engine has opened it:
//! so only verified files are loaded. They are read in pieces, since they may be as large as a
//! disk.

use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

use md5::{Digest, Md5};

use crate::backend::{Instance, LoadedModel, Threads};
use crate::control::loading::vetted_model::{InstanceCheck, VettedModel};
use crate::control::repository::beneath::{FileIdentity, RepositoryRoot};
use crate::control::repository::model_source::ModelSource;
use crate::error::Error;
use crate::model::config::FileChecksum;
use crate::model::repository::ModelDirectory;
use crate::runtime::clock;

/// The times of files move on in steps, of 10 ms at most in Linux: a file that was written within one and is written
/// again keeps its time.
const TIME_STEP: Duration = Duration::from_millis(20);
/// Bytes that are read at a time.
const PIECE_SIZE: usize = 64 << 10;

/// Files that had their checksums, as they were then.
#[derive(Clone, Debug, Default)]
pub struct VerifiedFiles {
    /// The path beneath the repository, and the one beneath the model's directory for messages.
    files: Vec<(String, String, FileIdentity)>,
}

impl VerifiedFiles {
    /// Reads the files of a model that have checksums.
    ///
    /// # Errors
    /// `InvalidArgument` with Triton's texts (`checksum.cc`) for a file that cannot be read beneath
    /// the repository, or has another checksum.
    pub fn verify(source: &ModelSource, directory: &ModelDirectory, sums: &[FileChecksum]) -> Result<Self, Error> {
        let mut files = Vec::with_capacity(sums.len());
        for FileChecksum { path, md5: expected } in sums {
            let beneath = directory.file(path);
            let unreadable = |error: io::Error| {
                Error::invalid(format!("failed to open text file for read {}: {error}", path.escape_debug()))
            };
            let mut file = source.repository.open_file(&beneath).map_err(unreadable)?;
            let identity = settled(&file).map_err(unreadable)?;
            let found = digest(&mut file).map_err(unreadable)?;
            if found != *expected {
                return Err(Error::invalid(format!(
                    "Mismatched MD5 hash for file {}, expect: {}, got: {found}",
                    path.escape_debug(),
                    expected.escape_debug()
                )));
            }
            files.push((beneath, path.clone(), identity));
        }
        Ok(Self { files })
    }

    /// Checks, after a load, that each path leads to the file that was verified, and that it was
    /// not written to.
    ///
    /// # Errors
    /// `Unavailable` if it does not, or was.
    pub fn check(&self, repository: &RepositoryRoot) -> Result<(), Error> {
        let is_other = |(beneath, _, verified): &&(String, String, FileIdentity)| {
            repository.identity(beneath).as_ref().ok() != Some(verified)
        };
        match self.files.iter().find(is_other) {
            Some((_, path, _)) => {
                let path = path.escape_debug();
                Err(Error::unavailable(format!("'{path}' was changed since its checksum was verified; load it again")))
            }
            None => Ok(()),
        }
    }

    /// Adds the same check to a model whose instances open its files by their paths when they are
    /// made, which may be much later.
    ///
    /// # Errors
    /// `Unavailable` if the repository cannot be kept open.
    pub fn guard(&self, source: &ModelSource, model: Box<dyn LoadedModel>) -> Result<Box<dyn LoadedModel>, Error> {
        if self.files.is_empty() {
            return Ok(model);
        }
        let repository = source.keep_open()?;
        Ok(Box::new(VettedModel { model, check: FileGuard { repository, files: self.clone() } }))
    }
}

/// Returns the identity of a file, which any later write changes.
fn settled(file: &File) -> io::Result<FileIdentity> {
    let identity = FileIdentity::of(file)?;
    let age = clock::epoch_nanos(clock::now()).saturating_sub(identity.changed_nanos());
    let Some(left) = TIME_STEP.checked_sub(Duration::from_nanos(age)) else { return Ok(identity) };
    // This is a load thread. A time in the future is another machine's: waiting for one step must
    // do.
    let end_at = clock::now() + left;
    while clock::now() < end_at {
        std::thread::park_timeout(end_at.since(clock::now()));
    }
    FileIdentity::of(file)
}

fn digest(file: &mut impl Read) -> io::Result<String> {
    let (mut state, mut piece) = (Md5::new(), vec![0; PIECE_SIZE]);
    loop {
        let count = file.read(&mut piece)?;
        let Some(read) = piece.get(..count).filter(|read| !read.is_empty()) else { break };
        state.update(read);
    }
    Ok(state.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Files that are still the verified ones when an instance has been made of them.
struct FileGuard {
    repository: RepositoryRoot,
    files: VerifiedFiles,
}

impl InstanceCheck for FileGuard {
    fn check(&self, _: &mut dyn Instance, _: &Threads) -> Result<(), Error> {
        self.files.check(&self.repository)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::backend::Batch;

    struct Nothing;

    impl LoadedModel for Nothing {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            Ok(Box::new(Self))
        }

        fn may_run_inline(&self) -> bool {
            true
        }
    }

    impl Instance for Nothing {
        fn run(&mut self, batch: Batch) {
            drop(batch);
        }
    }

    const HELLO: &str = "5d41402abc4b2a76b9719d911017c592";

    fn sum(path: &str, md5: &str) -> FileChecksum {
        FileChecksum { path: path.to_owned(), md5: md5.to_owned() }
    }

    #[test]
    fn a_digest_is_that_of_rfc_1321() {
        let check = |bytes: &[u8], want: &str| assert_eq!(digest(&mut &*bytes).unwrap(), want);
        check(b"", "d41d8cd98f00b204e9800998ecf8427e");
        check(b"message digest", "f96b697d7cb7938d525a2f31aaf161d0");
        check(&vec![b'a'; 2 * PIECE_SIZE + 1], "3124e19245cfd2c84a969ccb84b4b2bd");
    }

    #[test]
    fn a_file_that_is_another_is_told_with_both_sums_and_one_outside_is_not_read() {
        let root = std::env::temp_dir().join(format!("deuteron-sums-{}", std::process::id()));
        fs::create_dir_all(root.join("models/m/1")).unwrap();
        fs::write(root.join("models/m/1/file"), "hello").unwrap();
        fs::write(root.join("outside"), "hello").unwrap();
        symlink(root.join("outside"), root.join("models/m/1/out")).unwrap();
        let source = ModelSource::of_directory(root.join("models")).unwrap();
        let directory = ModelDirectory::from_entry(&source.repository.list_model("m")).unwrap();
        let check = |path: &str, md5: &str, want: &str| {
            let outcome = VerifiedFiles::verify(&source, &directory, &[sum("1/file", HELLO), sum(path, md5)]);
            let text = outcome.err().map(|error| error.text().to_owned()).unwrap_or_default();
            assert!(text.starts_with(want) && text.is_empty() == want.is_empty(), "{path}: {text}");
        };
        check("1/file", HELLO, "");
        check("1/file", "invalid", &format!("Mismatched MD5 hash for file 1/file, expect: invalid, got: {HELLO}"));
        check("absent", HELLO, "failed to open text file for read absent: No such file or directory");
        check("1", HELLO, "failed to open text file for read 1: it is not a regular file");
        check("1/out", HELLO, "failed to open text file for read 1/out: ");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_file_that_is_written_or_swapped_after_its_check_fails_the_load_and_every_later_instance() {
        let root = std::env::temp_dir().join(format!("deuteron-sums-swap-{}", std::process::id()));
        let file = root.join("m/1/file");
        type Change = fn(&std::path::Path);
        let changes: [(&str, Change); 4] = [
            ("written", |file| fs::write(file, "HELLO").unwrap()),
            ("replaced", |file| {
                fs::write(file.with_extension("new"), "hello").unwrap();
                fs::rename(file.with_extension("new"), file).unwrap();
            }),
            ("removed", |file| fs::remove_file(file).unwrap()),
            // Its size and its time are those of the verified file.
            ("written and dated back", |file| {
                let time = fs::metadata(file).unwrap().modified().unwrap();
                fs::write(file, "HELLO").unwrap();
                File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
            }),
        ];
        for (what, act) in changes {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "hello").unwrap();
            let source = ModelSource::of_directory(root.clone()).unwrap();
            let directory = ModelDirectory::from_entry(&source.repository.list_model("m")).unwrap();
            let verified = VerifiedFiles::verify(&source, &directory, &[sum("1/file", HELLO)]).unwrap();
            let model = verified.guard(&source, Box::new(Nothing)).unwrap();
            let instance = || backend::threads::enter(1, |threads| model.new_instance(threads).map(drop));
            assert_eq!((verified.check(&source.repository), instance()), (Ok(()), Ok(())), "{what}");
            act(&file);
            let text = "'1/file' was changed since its checksum was verified; load it again";
            assert_eq!(verified.check(&source.repository).map_err(|error| error.text().to_owned()), Err(text.into()));
            assert_eq!(instance().map_err(|error| error.text().to_owned()), Err(text.into()), "{what}");
            fs::remove_dir_all(&root).unwrap();
        }
    }
}
