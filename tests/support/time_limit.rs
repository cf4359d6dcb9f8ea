//! The end of a run in which a test hangs: libtest waits for ever, and does not name the test.

use std::path::PathBuf;
use std::sync::{Mutex, Once};
use std::time::Duration;
use std::{env, fs, io, io::Write as _, process, thread};

/// The threads that a test has run on, each by its name and its folder in `/proc`.
static SEEN: Mutex<Vec<(String, PathBuf)>> = Mutex::new(Vec::new());

/// Notes that this test runs. After `DEUTERON_TESTS_MINUTES`, if set, the tests that still run are named, and the run
/// fails.
pub fn watch() {
    static ONCE: Once = Once::new();
    let Some(minutes) = env::var("DEUTERON_TESTS_MINUTES").ok().and_then(|value| value.parse::<u64>().ok()) else {
        return;
    };
    if let (Some(name), Ok(task)) = (thread::current().name(), fs::read_link("/proc/thread-self")) {
        let task = PathBuf::from("/proc").join(task);
        let mut seen = SEEN.lock().expect("no thread panics while it has it");
        // The kernel reuses the number of a thread that has ended: the latest test with it is the one that runs.
        seen.retain(|(_, other)| *other != task);
        seen.push((name.to_owned(), task));
    }
    ONCE.call_once(|| {
        thread::spawn(move || {
            thread::sleep(Duration::from_secs(60 * minutes));
            let seen = SEEN.lock().expect("no thread panics while it has it");
            let still: Vec<_> = seen.iter().filter(|(_, task)| task.exists()).map(|(name, _)| name.as_str()).collect();
            // `eprintln` would go into libtest's capture of the test whose thread began this one.
            let text = format!("\nafter {minutes} minutes these still run:\n    {}\n", still.join("\n    "));
            let _ = io::stderr().write_all(text.as_bytes());
            process::exit(101);
        });
    });
}
