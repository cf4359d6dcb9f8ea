//! Bounds of stores that no store of a test would reach by itself.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::scripted::{Scripted, listing};
use crate::support::folder::Folder;
use crate::support::over::Over;
use crate::support::server::{Ports, Server};
use crate::{MODEL, Setup, answers};

/// The value of the constant in `limits`.
const OBJECTS_MAX: usize = 262_144;
const INDEX_SIZE_MAX: usize = 128 << 20;
const CREDENTIALS_SIZE_MAX: usize = 1 << 20;
const FILES_MAX: usize = 256;

/// The value of a parameter in the query.
fn parameter<'a>(target: &'a str, name: &str) -> Option<&'a str> {
    target.split(['?', '&']).find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

#[test]
fn a_bucket_of_too_many_objects_is_refused_and_one_of_as_many_as_may_be_is_not() {
    const PAGE: usize = 50_000;
    let store_of = |count: usize| {
        Scripted::new(Duration::ZERO, move |target| {
            let start: usize = parameter(target, "continuation-token").map_or(0, |token| token.parse().unwrap());
            let end = count.min(start + PAGE);
            let objects = (start..end).map(|number| (format!("models/a/1/{number}"), 1));
            Some(listing(objects, (end < count).then_some(end)))
        })
    };
    let store = store_of(OBJECTS_MAX + 1);
    let said = Setup::s3(&store.host()).refused(&[]);
    assert!(said.contains("it has more than 262144 objects; name a longer path of the bucket"), "{said}");
    // As many as allowed: they are refused for their bytes alone.
    let store = store_of(OBJECTS_MAX);
    let said = Setup::s3(&store.host()).refused(&["--model-store-bytes-max=1000"]);
    assert!(said.contains("--model-store-bytes-max") && !said.contains("name a longer path"), "{said}");
}

#[test]
fn an_index_that_is_too_large_is_refused() {
    let store =
        Scripted::new(Duration::ZERO, |target| target.ends_with("/index.json").then(|| vec![b' '; INDEX_SIZE_MAX + 1]));
    let said = Setup::new(format!("http://{}/models", store.host())).refused(&[]);
    assert!(said.contains("its index.json has more than 134217728 bytes"), "{said}");
}

#[test]
fn a_file_of_credentials_that_is_too_large_is_refused() {
    let folder = Folder::new("stores-credentials");
    let path = folder.path().join("credentials");
    let store = Scripted::new(Duration::ZERO, |_| Some(listing([].into_iter(), None)));
    let said = |size: usize| {
        fs::write(&path, format!("{{}}{}", " ".repeat(size - 2))).unwrap();
        Setup::s3(&store.host()).with("TRITON_CLOUD_CREDENTIAL_PATH", path.to_str().unwrap()).refused(&[])
    };
    let text = said(CREDENTIALS_SIZE_MAX + 1);
    assert!(text.contains("it has more than 1048576 bytes"), "{text}");
    assert!(!said(CREDENTIALS_SIZE_MAX).contains("it has more than"));
}

/// A store with one model of `count` small files, and a pause of `pause` before each object.
fn many_files(count: usize, pause: Duration) -> Scripted {
    Scripted::new(pause, move |target| {
        if target.contains("list-type=2") {
            let weights = (0..count).map(|number| (format!("models/a/1/{number}"), 1));
            return Some(listing(weights.chain([("models/a/config.pbtxt".to_owned(), MODEL.len())]), None));
        }
        let name = target.rsplit('/').next()?;
        Some(if name == "config.pbtxt" { MODEL.as_bytes().to_vec() } else { vec![b'w'] })
    })
}

#[test]
fn as_many_connections_as_the_flag_says_are_used_at_a_time() {
    for connections in [1, 3] {
        let store = many_files(20, Duration::from_millis(30));
        let setup = Setup::s3(&store.host());
        let server = setup.serve(&[&format!("--model-store-connections={connections}")]);
        assert!(answers(&server, "a"), "{}", server.log());
        assert_eq!(store.most_at_a_time(), connections);
    }
}

#[test]
fn a_model_of_many_files_is_fetched_with_few_of_them_open() {
    const FILES: usize = 1_500;
    let store = many_files(FILES, Duration::from_millis(2));
    let setup = Setup::s3(&store.host());
    let ports = Ports::free();
    let command = setup.command(&[], ports);
    let (is_over, cache) = (AtomicBool::new(false), setup.cache.path());
    let (server, most) = thread::scope(|scope| {
        // The files of any process that has a file of this cache open: the server is not known before it is ready.
        let watching = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::SeqCst) {
                most = most.max(open_beneath(cache));
                thread::sleep(Duration::from_millis(5));
            }
            most
        });
        let over = Over(&is_over);
        let server = Server::start(command, ports);
        drop(over);
        (server, watching.join().unwrap())
    });
    assert!(answers(&server, "a") && setup.cached().len() == FILES + 1, "{}", server.log());
    // Each counts once for the fetching thread, and once for the one that syncs it to the disk.
    assert!((FILES_MAX..=2 * FILES_MAX + 16).contains(&most), "{most} descriptors at a time");
}

/// Descriptors of files beneath a directory, of the process that has the most.
fn open_beneath(directory: &std::path::Path) -> usize {
    let open_of = |process: fs::DirEntry| {
        let files = fs::read_dir(process.path().join("fd")).ok()?.flatten();
        Some(files.filter(|file| fs::read_link(file.path()).is_ok_and(|path| path.starts_with(directory))).count())
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(open_of).max().unwrap_or(0)
}
