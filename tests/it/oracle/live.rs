//! The differential test, live: the same bytes to Deuteron and to a real tritonserver 2.51, answers compared through
//! the table of intended differences. Needs Python 3 and its `venv`; the first run fetches the oracle from PyPI.
//!
//! `DEUTERON_TESTS=triton cargo test --test it oracle::live::` compares; with `UPDATE_EXPECT=1` it asks Triton alone
//! and writes `tests/oracle/recorded.txt` anew.

#![expect(clippy::disallowed_types, reason = "tests that time arrivals take turns at the machine")]

use std::{
    path::Path,
    sync::{
        RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::oracle::{
    answer::Client,
    case::{Ask, Case},
    cases,
    compare::{self, Pair},
    difference::DIFFERENCES,
    recording::{self, Entry},
    script::Script,
    scripts::{self, SCRIPTS},
    suites::{SUITES, Suite},
};
use crate::support::{
    folder::Folder,
    repository::{self, Flavour},
    server::Server,
    skipped::is_asked_for,
    triton,
};

/// No other Triton while scripts are played against the clock.
static TURN: RwLock<()> = RwLock::new(());

/// Suites at a time: a tritonserver waits for its models more than it computes. One has up to 1,600 threads, and a container may
/// have 5,000 at most.
const SUITES_AT_ONCE: usize = 2;

#[test]
fn triton_answers_as_recorded_and_deuteron_as_decided() {
    let _turn = TURN.read();
    let cases = cases::all();
    let folder = repository::write(Flavour::Triton);
    let ask = || Some(ask_all(&mut triton::start(folder.path())?, folder.path(), &cases));
    let Some(live) = ask_again(None, ask) else { return };
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        recording::write(None, &live);
        return;
    }
    complain(&changes(None, &live));
    let folder = repository::write(Flavour::Deuteron);
    let deuteron = ask_all(&mut Server::deuteron(folder.path(), cases::DEUTERON_FLAGS), folder.path(), &cases);
    let answers = cases.iter().zip(&live).zip(&deuteron);
    let pairs: Vec<_> = answers
        .map(|((case, triton), deuteron)| Pair { case, triton: &triton.answer, deuteron: &deuteron.answer })
        .collect();
    complain(&compare::compare(&pairs, DIFFERENCES));
}

#[test]
fn both_servers_make_the_same_batches_of_the_same_arrivals() {
    if !is_asked_for("batches") {
        return;
    }
    let _turn = TURN.write();
    let [ours, theirs] = [Flavour::Deuteron, Flavour::Triton].map(|flavour| {
        let folder = Folder::new("scripts");
        SCRIPTS.iter().for_each(|script| script.write(flavour, folder.path()));
        folder
    });
    let Some(triton) = triton::start(theirs.path()) else {
        return;
    };
    let deuteron = Server::deuteron(ours.path(), &[]);
    let played = SCRIPTS.iter().map(|script| {
        thread::scope(|scope| {
            let theirs = scope.spawn(|| script.play(&triton));
            let ours = script.play(&deuteron);
            (ours, theirs.join().expect("the script was played"))
        })
    });
    let played: Vec<_> = played.collect();
    let case = |script: &Script| Case { name: script.name.to_owned(), ask: Ask::Http(script.arrivals.into()) };
    let cases: Vec<_> = SCRIPTS.iter().map(case).collect();
    let answers = cases.iter().zip(&played);
    let pairs: Vec<_> = answers.map(|(case, (deuteron, triton))| Pair { case, triton, deuteron }).collect();
    complain(&compare::compare(&pairs, scripts::DIFFERENCES));
}

#[test]
fn triton_answers_each_suite_as_recorded_and_deuteron_as_decided() {
    let _turn = TURN.read();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..SUITES_AT_ONCE {
            scope.spawn(|| while SUITES.get(next.fetch_add(1, Ordering::Relaxed)).is_some_and(play) {});
        }
    });
}

/// Asks both servers the cases of a suite. Returns false if there is no Triton.
fn play(suite: &Suite) -> bool {
    let cases = (suite.cases)();
    let [ours, theirs] = [Flavour::Deuteron, Flavour::Triton].map(|flavour| {
        let folder = Folder::new("suite");
        (suite.write)(flavour, folder.path());
        folder
    });
    let ask = || Some(ask_all(&mut triton::start_with(theirs.path(), suite.flags)?, theirs.path(), &cases));
    let Some(live) = ask_again(Some(suite.name), ask) else { return false };
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        recording::write(Some(suite.name), &live);
        return true;
    }
    complain(&changes(Some(suite.name), &live));
    let Some(mut server) = suite.deuteron(ours.path()) else { return true };
    let deuteron = ask_all(&mut server, ours.path(), &cases);
    let answers = cases.iter().zip(&live).zip(&deuteron);
    let pairs: Vec<_> = answers
        .map(|((case, triton), deuteron)| Pair { case, triton: &triton.answer, deuteron: &deuteron.answer })
        .collect();
    complain(&compare::compare(&pairs, suite.differences));
    true
}

/// Triton's answers; if they differ from the recording, the answers of a second run. Seen once, on a busy machine:
/// tritonserver ran an iterative sequence once more than it was asked to, under the id of one that had just ended.
fn ask_again(suite: Option<&str>, ask: impl Fn() -> Option<Vec<Entry>>) -> Option<Vec<Entry>> {
    let live = ask()?;
    let is_new = std::env::var_os("UPDATE_EXPECT").is_some();
    if is_new || changes(suite, &live).is_empty() { Some(live) } else { ask() }
}

/// Differences between the live answers and the recording.
fn changes(suite: Option<&str>, live: &[Entry]) -> Vec<String> {
    let recorded = recording::read(suite);
    let mut changes = Vec::new();
    if recorded.len() != live.len() {
        changes.push(format!("{} cases are recorded, and there are {}", recorded.len(), live.len()));
    }
    for (recorded, live) in recorded.iter().zip(live).filter(|(recorded, live)| recorded != live) {
        changes.push(format!("recorded: {recorded:#?}\nlive: {live:#?}"));
    }
    changes
}

fn complain(complaints: &[String]) {
    assert!(complaints.is_empty(), "{} complaints\n\n{}", complaints.len(), complaints.join("\n\n"));
}

fn ask_all(server: &mut Server, repository: &Path, cases: &[Case]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for case in cases {
        let answer = Client::new(server, repository).ask(&case.ask);
        assert!(server.is_running(), "`{}` has ended the server:\n{}", case.name, server.log());
        entries.push(Entry { name: case.name.clone(), ask: case.ask.text(), answer });
    }
    entries
}
