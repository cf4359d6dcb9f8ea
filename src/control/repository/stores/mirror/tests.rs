//! The mirror on a store that is a table, with scripted faults.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;

/// A store that is a table; its fetches are counted.
struct TableStore {
    state: Arc<TableState>,
}

/// The file `store` in the directory has each object's contents and tag; `!` among contents is a fetch that fails.
#[derive(Default)]
struct TableState {
    root: PathBuf,
    fetched: AtomicUsize,
}

impl TableState {
    /// `path=contents:tag` a word; `away` is a store that cannot be reached.
    fn objects(&self) -> Result<BTreeMap<String, (String, String)>, StoreFault> {
        let text = fs::read_to_string(self.root.join("store")).unwrap();
        if text == "away" {
            return Err(StoreFault::Away("unplugged".to_owned()));
        }
        let object = |word: &str| {
            let (path, rest) = word.split_once('=').unwrap();
            let (contents, tag) = rest.split_once(':').unwrap_or((rest, "t"));
            (path.to_owned(), (contents.to_owned(), tag.to_owned()))
        };
        Ok(text.split_whitespace().map(object).collect())
    }
}

impl ObjectSource for TableStore {
    fn list(&self, directory: &str) -> Result<Vec<StoreObject>, StoreFault> {
        let all = self.state.objects()?.into_iter().map(|(path, (contents, tag))| StoreObject {
            path,
            size: contents.len() as u64,
            tag,
            sha256: String::new(),
        });
        Ok(all.filter(|object| directory.is_empty() || object.path.starts_with(&format!("{directory}/"))).collect())
    }

    fn names(&self) -> Result<StoreNames, StoreFault> {
        let mut names = StoreNames::default();
        for path in self.state.objects()?.into_keys() {
            match path.split_once('/') {
                Some((directory, _)) => names.directories.push(directory.to_owned()),
                None => names.files.push(path),
            }
        }
        names.directories.dedup();
        Ok(names)
    }

    fn fetch(&self, wanted: Vec<WantedObject>) -> Result<(), (String, StoreFault)> {
        for WantedObject { object, mut file } in wanted {
            self.state.fetched.fetch_add(1, Ordering::SeqCst);
            let objects = self.state.objects().map_err(|fault| (object.path.clone(), fault))?;
            let (contents, _) = objects.get(&object.path).cloned().unwrap_or_default();
            if contents.contains('!') {
                return Err((object.path, StoreFault::Damaged("another sum".to_owned())));
            }
            file.write_all(contents.as_bytes()).unwrap();
        }
        Ok(())
    }
}

/// A mirror in a directory of its own, removed with it.
struct Setup {
    state: Arc<TableState>,
}

impl Setup {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("deuteron-mirror-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        Self { state: Arc::new(TableState { root, ..TableState::default() }) }
    }

    fn store(&self, text: &str) {
        fs::write(self.state.root.join("store"), text).unwrap();
    }

    fn mirror(&self) -> StoreMirror {
        let url = StoreUrl::read(Path::new("s3://bucket/models")).unwrap().unwrap();
        let settings =
            StoreSettings { cache: Some(self.state.root.join("cache")), bytes_max: 100, ..StoreSettings::default() };
        let source = TableStore { state: Arc::clone(&self.state) };
        StoreMirror::open(url, Box::new(source), &settings, Arc::default()).unwrap()
    }

    /// Returns the fetches since the last call.
    fn fetched(&self) -> usize {
        self.state.fetched.swap(0, Ordering::SeqCst)
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.state.root);
    }
}

/// Returns all files of a directory, with their contents.
fn files(root: &Path) -> String {
    let mut found = Vec::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if path.is_dir() {
                left.push(path);
                found.push(format!("{name}/"));
            } else {
                found.push(format!("{name}={}", fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found.retain(|name| !name.ends_with('/') || !found_below(name, root));
    found.join(" ")
}

/// Returns true if a directory has anything: those are not shown.
fn found_below(name: &str, root: &Path) -> bool {
    fs::read_dir(root.join(name)).unwrap().next().is_some()
}

#[test]
fn a_mirror_becomes_as_the_store_and_fetches_only_what_changed() {
    let setup = Setup::new("follows");
    let mirror = setup.mirror();
    let step = |store: &str, fetched: usize, want: &str| {
        setup.store(store);
        assert_eq!(mirror.mirror_all(), Ok(Vec::new()), "{store}");
        assert_eq!((files(&mirror.tree()).as_str(), setup.fetched()), (want, fetched), "{store}");
        assert_eq!(fs::read_dir(mirror.root.join("new/models")).unwrap().count(), 0, "nothing is left over");
    };
    step("", 0, "");
    step("a/1/w=one a/c=x b/1/w=b", 3, "a/1/w=one a/c=x b/1/w=b");
    step("a/1/w=one a/c=x b/1/w=b", 0, "a/1/w=one a/c=x b/1/w=b");
    step("a/1/w=two:u a/c=x b/1/w=b", 1, "a/1/w=two a/c=x b/1/w=b");
    step("a/1/w=two:u a/2/w=new a/c=x b/1/w=b", 1, "a/1/w=two a/2/w=new a/c=x b/1/w=b");
    step("a/2/w=new a/c=x b/1/w=b", 0, "a/2/w=new a/c=x b/1/w=b");
    step("a/2/w=new a/c=x", 0, "a/2/w=new a/c=x");
    step("a/2/w=new a/c=x lone.onnx=l", 1, "a/2/w=new a/c=x lone.onnx=l");
    step("a/2/w=new a/c=x lone.onnx=m:2 e/1/=", 1, "a/2/w=new a/c=x e/1/ lone.onnx=m");
    step("a=file", 1, "a=file");
    step("a/1/w=again", 1, "a/1/w=again");
    step("", 0, "");
}

#[test]
fn what_does_not_change_keeps_its_inode_so_that_its_version_is_not_loaded_again() {
    use std::os::unix::fs::MetadataExt;
    let setup = Setup::new("inodes");
    let mirror = setup.mirror();
    let stamp = |path: &str| {
        let file = fs::metadata(mirror.tree().join(path)).unwrap();
        (file.ino(), file.mtime(), file.mtime_nsec())
    };
    setup.store("a/1/w=one");
    mirror.mirror_all().unwrap();
    let before = stamp("a/1/w");
    setup.store("a/1/w=one a/2/w=two");
    mirror.mirror_all().unwrap();
    assert_eq!(stamp("a/1/w"), before);
}

#[test]
fn a_model_that_cannot_be_fetched_stays_as_it_was_and_costs_no_other() {
    let setup = Setup::new("damaged");
    let mirror = setup.mirror();
    setup.store("a/1/w=one b/1/w=b");
    mirror.mirror_all().unwrap();
    setup.store("a/1/w=!:u a/2/w=two b/1/w=c:u");
    let refused = mirror.mirror_all().unwrap();
    let [(name, error)] = refused.as_slice() else { panic!("{refused:?}") };
    assert_eq!(name, "a");
    assert!(error.text().starts_with("model repository 's3://bucket/models/a/1/w': the content differs"), "{error}");
    assert_eq!(files(&mirror.tree()), "a/1/w=one b/1/w=c");
    assert_eq!(mirror.cells.models_refused.get(), Some(1));
    setup.store("a/1/w=good:u a/2/w=two b/1/w=c:u");
    assert_eq!(mirror.mirror_all(), Ok(Vec::new()));
    assert_eq!(files(&mirror.tree()), "a/1/w=good a/2/w=two b/1/w=c");
}

#[test]
fn a_store_that_is_away_leaves_the_mirror_also_for_the_next_server() {
    let setup = Setup::new("away");
    let mirror = setup.mirror();
    assert!(!mirror.has_copy());
    setup.store("a/1/w=one");
    mirror.mirror_all().unwrap();
    assert_eq!(mirror.cells.reachable.get(), Some(1));
    drop(mirror);
    setup.store("away");
    let mirror = setup.mirror();
    let error = mirror.mirror_all().unwrap_err();
    assert!(error.text().contains("the store cannot be reached: unplugged"), "{error}");
    assert!(mirror.has_copy() && mirror.names().is_err() && mirror.mirror_model("a").is_err());
    assert_eq!((files(&mirror.tree()).as_str(), mirror.cells.reachable.get()), ("a/1/w=one", Some(0)));
    setup.store("a/1/w=one");
    mirror.mirror_all().unwrap();
    assert_eq!(setup.fetched(), 1, "the next server fetches nothing again");
}

#[test]
fn a_model_is_mirrored_alone_where_it_is_asked_for() {
    let setup = Setup::new("alone");
    let mirror = setup.mirror();
    setup.store("a/1/w=one b/1/w=b c=x");
    mirror.mirror_model("a").unwrap();
    assert_eq!((files(&mirror.tree()).as_str(), setup.fetched()), ("a/1/w=one", 1));
    let names = StoreNames { directories: vec!["a".into(), "b".into()], files: vec!["c".into()] };
    assert_eq!(mirror.names(), Ok(names));
    for name in ["none", "..", "a/1", "", "."] {
        mirror.mirror_model(name).unwrap();
    }
    setup.store("b/1/w=b");
    mirror.mirror_model("a").unwrap();
    assert_eq!(files(&mirror.tree()), "");
}

#[test]
fn files_that_were_lost_from_the_cache_are_fetched_again() {
    let setup = Setup::new("lost");
    let mirror = setup.mirror();
    setup.store("a/1/w=one a/1/v=two");
    mirror.mirror_all().unwrap();
    fs::remove_file(mirror.tree().join("a/1/w")).unwrap();
    fs::write(mirror.tree().join("a/1/v"), "longer").unwrap();
    assert_eq!((mirror.mirror_all(), setup.fetched()), (Ok(Vec::new()), 4));
    assert_eq!(files(&mirror.tree()), "a/1/v=two a/1/w=one");
    // An invalid index counts as missing.
    fs::write(mirror.root.join("index"), "nonsense").unwrap();
    assert_eq!((mirror.mirror_all(), setup.fetched()), (Ok(Vec::new()), 2));
}

#[test]
fn models_beyond_the_bytes_of_the_cache_are_refused() {
    let setup = Setup::new("bytes");
    let mirror = setup.mirror();
    setup.store(&format!("a/1/w={} b/1/w={}", "x".repeat(60), "y".repeat(41)));
    let refused = mirror.mirror_all().unwrap();
    assert!(
        matches!(refused.as_slice(), [(name, error)] if name == "b" && error.text().contains("--model-store-bytes-max"))
    );
    assert!(mirror.mirror_model("b").unwrap_err().text().contains("41 bytes are more"));
    assert_eq!(setup.fetched(), 1);
}

#[test]
fn two_servers_that_start_at_once_fetch_each_object_once() {
    let setup = Setup::new("two");
    let (one, other) = (setup.mirror(), setup.mirror());
    setup.store("a/1/w=one b/1/w=b c/1/w=c d/1/w=d");
    thread::scope(|scope| {
        for mirror in [&one, &other, &one, &other] {
            scope.spawn(|| assert_eq!(mirror.mirror_all(), Ok(Vec::new())));
        }
    });
    assert_eq!((files(&one.tree()).as_str(), setup.fetched()), ("a/1/w=one b/1/w=b c/1/w=c d/1/w=d", 4));
}

#[test]
fn a_model_does_not_change_under_a_load() {
    let setup = Setup::new("lease");
    let (mirror, other) = (setup.mirror(), setup.mirror());
    setup.store("a/1/w=one");
    mirror.mirror_all().unwrap();
    let lease = other.lease("a").unwrap();
    setup.store("a/1/w=two:u");
    thread::scope(|scope| {
        let changing = scope.spawn(|| mirror.mirror_all());
        // The new object was fetched, and waits.
        while setup.state.fetched.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        thread::park_timeout(Duration::from_millis(100));
        assert_eq!((files(&mirror.tree()).as_str(), changing.is_finished()), ("a/1/w=one", false));
        drop(lease);
        assert_eq!(changing.join().unwrap(), Ok(Vec::new()));
    });
    assert_eq!(files(&mirror.tree()), "a/1/w=two");
}

#[test]
fn whoever_waits_too_long_for_another_server_says_so_and_changes_nothing() {
    let setup = Setup::new("waits");
    let (mut mirror, other) = (setup.mirror(), setup.mirror());
    (mirror.turn_max, mirror.swap_max) = (Duration::from_millis(60), Duration::from_millis(60));
    setup.store("a/1/w=one");
    mirror.mirror_all().unwrap();
    setup.store("a/1/w=two:u");
    let refused = |text: &str| match mirror.mirror_all().unwrap().as_slice() {
        [(name, error)] => assert!(name == "a" && error.text().contains(text), "{error:?}"),
        more => panic!("{more:?}"),
    };
    let (turn, _) = other.turn("a").unwrap();
    refused("another server has fetched it for 0 s into the same cache");
    drop(turn);
    let lease = other.lease("a").unwrap();
    refused("its update waits for a load that reads the old files");
    setup.store("b/1/w=b");
    let error = &mirror.mirror_all().unwrap()[0].1;
    assert!(error.text().contains("a load reads its files, which the store no longer has"), "{error:?}");
    drop(lease);
    let exchange = other.lock("load", "a", FlockOperation::NonBlockingLockExclusive, Duration::ZERO).unwrap();
    let error = mirror.lease("a").err().unwrap();
    assert!(error.text().contains("its files are being exchanged by another server"), "{error:?}");
    drop(exchange);
    assert_eq!(files(&mirror.tree()), "a/1/w=one b/1/w=b");
    assert_eq!((mirror.mirror_all(), files(&mirror.tree()).as_str()), (Ok(Vec::new()), "b/1/w=b"));
}

#[test]
fn the_directory_of_a_store_is_readable_and_its_own() {
    let name = directory_name("s3://bucket/models");
    assert!(name.starts_with("s3-bucket-models-") && name.len() == "s3-bucket-models-".len() + 16, "{name}");
    assert_ne!(name, directory_name("s3://bucket-models"));
    assert!(directory_name(&format!("s3://b/{}", "../é/".repeat(99))).len() < 100);
    let setup = Setup::new("names");
    let mirror = setup.mirror();
    assert!(mirror.tree().ends_with("tree/models"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&mirror.root).unwrap().permissions());
    assert_eq!(mode & 0o77, 0);
    assert_eq!(fs::read_to_string(mirror.root.join("url")).unwrap(), "s3://bucket/models\n");
}
