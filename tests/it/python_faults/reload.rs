//! Python models that are loaded again and again while they serve: no request fails, and nothing is left behind.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::python_faults::{Deed, PythonServer, run, until};
use crate::support::over::Over;

/// Reloads of all models together; `DEUTERON_RELOADS` has another number for a longer run.
const RELOADS: usize = 120;
/// Reloads after which memory is stable.
const WARM_UP: usize = 40;
/// Rounds of the reloads after the warm-up, with a look at memory between two.
const ROUNDS: usize = 4;
/// Sets of rounds, of which one must show no growth.
const SETS: usize = 3;
/// Bytes by which the memory may grow over a set.
const GROWTH_MAX: i64 = 2 * 1024 * 1024;
const MODELS: [&str; 4] = ["a", "b", "c", "d"];

fn resident(id: u32) -> i64 {
    let text = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<i64>().unwrap() * 1024
}

/// The growth of memory from the first half of a set of rounds to the second. `found` has descriptors and threads, and the
/// resident bytes, after each round.
fn growth(found: &[((usize, usize), i64)]) -> i64 {
    let least = |found: &[((usize, usize), i64)]| found.iter().map(|(_, resident)| *resident).min().unwrap();
    let (first, second) = found.split_at(found.len() / 2);
    least(second) - least(first)
}

#[test]
fn reloads_under_load_fail_no_request_and_leave_nothing_behind() {
    let reloads = std::env::var("DEUTERON_RELOADS").map_or(RELOADS, |text| text.parse().expect("a number"));
    let deeds = MODELS.map(Deed::named);
    let flags = ["--model-control-mode=explicit", "--load-model=*"];
    let Some(served) = PythonServer::start(&deeds, &flags) else { return };
    let (address, id) = (served.server.http(), served.server.id());
    let (is_over, is_paused, answered) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    let settle = || {
        // No client is connected meanwhile.
        is_paused.store(true, Ordering::Relaxed);
        until("one process for each model", Duration::from_secs(20), || served.children().len() == MODELS.len());
        thread::sleep(Duration::from_millis(500));
        let found = (served.resources(), resident(id));
        is_paused.store(false, Ordering::Relaxed);
        found
    };
    let reload = |count: usize| {
        thread::scope(|scope| {
            for deed in &deeds {
                scope.spawn(|| {
                    for _ in 0..count / MODELS.len() {
                        // A new file: an unchanged model would not be loaded again.
                        deed.write(served.folder.path());
                        let (status, text) = served.load(deed.name);
                        assert_eq!(status, 200, "{text}");
                    }
                });
            }
        });
    };
    thread::scope(|scope| {
        let over = Over(&is_over);
        for model in MODELS {
            let (is_over, is_paused, answered) = (&is_over, &is_paused, &answered);
            scope.spawn(move || {
                let mut processes = std::collections::BTreeSet::new();
                while !is_over.load(Ordering::Relaxed) {
                    if is_paused.load(Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(20));
                        continue;
                    }
                    let outcome = run(address, model, "result = os.getpid()");
                    processes.insert(outcome.unwrap_or_else(|error| panic!("{model}: {error:?}")));
                    answered.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(30));
                }
                assert!(
                    processes.len() >= reloads / MODELS.len() / 2,
                    "{model}: {} processes answered",
                    processes.len()
                );
            });
        }
        let ended = thread::scope(|inner| {
            let work = inner.spawn(|| {
                reload(WARM_UP);
                let round = |_| {
                    reload((reloads - WARM_UP) / ROUNDS);
                    settle()
                };
                let rounds = || (0..ROUNDS).map(round).collect::<Vec<_>>();
                // The allocator keeps some megabytes more at one time than at another; a leak grows in every set of rounds.
                let mut found = rounds();
                for _ in 1..SETS {
                    if growth(&found) < GROWTH_MAX {
                        break;
                    }
                    found = rounds();
                }
                found
            });
            work.join()
        });
        drop(over);
        let found = ended.unwrap();
        println!("{} answers; descriptors, threads and resident bytes: {found:?}", answered.load(Ordering::Relaxed));
        let (before, after) = (found[0].0, found[ROUNDS - 1].0);
        assert!(after.0 <= before.0 && after.1 <= before.1, "{before:?}, then {after:?}");
        assert!(growth(&found) < GROWTH_MAX, "{found:?}");
    });
}
