//! The trials: faults and abuse that any server of the protocol must survive, tried from outside by URL and process id.
//! Each plays one row of a table of faults and abuse with a good client beside it (`standard`), prints its figures, and
//! passes or fails; last comes `passed N/26`. `docs/reliability.md` has the rows and their results.
//!
//! It knows nothing of the crate under test but the path of its binary, which it starts unless another server is given.
//! `cargo test` plays the short form, `.ci/run trials` the long one, `.ci/run soak` load and faults for hours.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test waits, on the real clock, shares, and fails by panicking"
)]

#[allow(unused_imports, reason = "without libtest its own tests are not there")]
#[path = "../support/mod.rs"]
mod support;

#[allow(dead_code, unused_imports, reason = "its own test uses the rest")]
#[path = "../it/http1_suite.rs"]
mod http1_suite;
#[path = "http2.rs"]
mod http2;

mod backend;
mod beside;
mod client;
mod floods;
mod form;
mod fuzz;
mod hold;
mod leaving;
mod life;
mod load;
mod memory;
mod models;
mod network;
mod soak;
mod standard;
mod strict;
mod subject;
mod trial;
mod values;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use form::Form;
use trial::{NotApplicable, Played, Trial};

/// A row of the table.
struct Row {
    number: u32,
    name: &'static str,
    play: fn(&Trial<'_>) -> Played,
}

const fn row(number: u32, name: &'static str, play: fn(&Trial<'_>) -> Played) -> Row {
    Row { number, name, play }
}

const ROWS: &[Row] = &[
    row(1, "open-loop load held", load::open_loop_load_held),
    row(2, "overload 3x", load::overload),
    row(3, "recovery", load::recovery),
    row(4, "deadline honoured", load::deadline_honoured),
    row(5, "client hang-up", leaving::client_hang_up),
    row(6, "gRPC cancel storm", leaving::cancel_storm),
    row(7, "SIGTERM under load", life::sigterm_under_load),
    row(8, "hot reload under load", life::hot_reload),
    row(9, "kill -9 and restart", life::killed_and_restarted),
    row(10, "HTTP/1 strictness", strict::http1_strictness),
    row(11, "HTTP/2 strictness", strict::http2_strictness),
    row(12, "pipelining and order", strict::pipelining),
    row(13, "slow clients", hold::slow_clients),
    row(14, "idle connections", hold::idle_connections),
    row(15, "out of descriptors", hold::out_of_descriptors),
    row(16, "rapid reset", floods::rapid_reset),
    row(17, "made you reset", floods::made_you_reset),
    row(18, "header bombs", floods::header_bombs),
    row(19, "control floods", floods::control_floods),
    row(20, "size bombs", values::size_bombs),
    row(21, "wrong values", values::wrong_values),
    row(22, "random fuzz", fuzz::random_fuzz),
    row(23, "lossy, slow network", network::lossy_network),
    row(24, "backend failure", backend::backend_failure),
    row(25, "sequences", backend::sequences),
    row(26, "memory ceiling", memory::memory_ceiling),
    row(27, "signal storm", beside::signal_storm),
    row(28, "metrics scraped", beside::scraped),
];

/// Rows that our server is known to fail, with the reason: they are played and shown, and do not fail the run.
const KNOWN: &[(u32, &str)] = &[];

/// The rows of the table; trials behind them are played too, and not counted.
const COUNTED: u32 = 26;

/// Concurrent trials in the short form: they wait most of the time.
const SIDE_BY_SIDE: usize = 4;

/// Failures of one trial that are printed.
const FAILURES_SHOWN: usize = 8;

/// The end of a trial.
enum Ended {
    Passed,
    Failed(Vec<String>),
    NotApplicable(String),
}

fn main() -> ExitCode {
    let form = match Form::parse(std::env::args().skip(1)) {
        Ok(form) => form,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::FAILURE;
        }
    };
    if form.is_list {
        ROWS.iter().for_each(|row| println!("{}: {}", row.number, row.name));
        return ExitCode::SUCCESS;
    }
    if let Some(folder) = &form.write_repository {
        models::write(folder, form.is_for_python);
        return ExitCode::SUCCESS;
    }
    if let Some(time) = form.soak {
        return soak::run(&form, time);
    }
    if form.is_long {
        // The server has the first core.
        core_affinity::set_for_current(core_affinity::CoreId { id: 1 });
    }
    let start = Instant::now();
    let wanted: Vec<&Row> = ROWS.iter().filter(|row| form.wants(row.number, row.name)).collect();
    let side_by_side = if form.is_long { 1 } else { SIDE_BY_SIDE };
    let (next, ended) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..side_by_side {
            scope.spawn(|| {
                while let Some(row) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let one = (row.number, play(&form, row));
                    ended.lock().unwrap().push(one);
                }
            });
        }
    });
    let ended = ended.into_inner().unwrap();
    let is_passed = |(number, ended): &&(u32, Ended)| *number <= COUNTED && matches!(ended, Ended::Passed);
    let passed = ended.iter().filter(is_passed).count();
    let is_known = |number: &u32| KNOWN.iter().any(|(known, _)| known == number);
    let failed = ended.iter().filter(|(number, ended)| matches!(ended, Ended::Failed(_)) && !is_known(number)).count();
    println!("passed {passed}/{COUNTED} in {:.0} s", start.elapsed().as_secs_f64());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays a trial, and prints its line.
fn play(form: &Form, row: &Row) -> Ended {
    let (start, trial) = (Instant::now(), Trial::new(form));
    let outcome = catch_unwind(AssertUnwindSafe(|| (row.play)(&trial)));
    let (figures, mut failures) = trial.found();
    let ended = match outcome {
        Ok(Err(NotApplicable(why))) => Ended::NotApplicable(why),
        Ok(Ok(())) if failures.is_empty() => Ended::Passed,
        Ok(Ok(())) => Ended::Failed(failures),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            failures.push(text.unwrap_or_else(|| "it panicked".to_owned()));
            Ended::Failed(failures)
        }
    };
    let known = KNOWN.iter().find(|(number, _)| *number == row.number);
    let word = match &ended {
        Ended::Passed => "passed",
        Ended::Failed(_) if known.is_some() => "FAILED as known",
        Ended::Failed(_) => "FAILED",
        Ended::NotApplicable(_) => "not applicable",
    };
    let mut line = format!("{:>2} {:<22} {word}: {}", row.number, row.name, figures.join("; "));
    match &ended {
        Ended::Passed => {}
        Ended::Failed(failures) => {
            failures.iter().take(FAILURES_SHOWN).for_each(|failure| line += &format!("\n     {failure}"));
            let more = failures.len().saturating_sub(FAILURES_SHOWN);
            if more > 0 {
                line += &format!("\n     and {more} more");
            }
        }
        Ended::NotApplicable(why) => line += why,
    }
    if let (Ended::Failed(_), Some((_, why))) = (&ended, known) {
        line += &format!("\n     known: {why}");
    }
    let took: Duration = start.elapsed();
    println!("{line} [{:.1} s]", took.as_secs_f64());
    ended
}
