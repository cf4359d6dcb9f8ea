//! The differential test without Triton: every case of the table played against Deuteron, and compared with what
//! tritonserver 2.51 answered when `tests/oracle/recorded.txt` was written.

use crate::oracle::{
    answer::Client,
    case::Case,
    cases,
    compare::{self, Pair},
    difference::DIFFERENCES,
    recording::{self, Entry},
    suites::SUITES,
};
use crate::support::{
    folder::Folder,
    repository::{self, Flavour},
    server::Server,
};

#[test]
fn deuteron_answers_as_triton_was_recorded_or_as_decided() {
    let cases = cases::all();
    let recorded = recording::read(None);
    let mut complaints = recording::check(&cases, &recorded);
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    let client = Client::new(&server, folder.path());
    let answers: Vec<_> = cases.iter().map(|case| client.ask(&case.ask)).collect();
    let pairs = pairs(&cases, &recorded, &answers);
    complaints.extend(compare::compare(&pairs, DIFFERENCES));
    assert!(complaints.is_empty(), "{} complaints\n\n{}", complaints.len(), complaints.join("\n\n"));
}

#[test]
fn the_recording_is_of_these_cases_and_shows_every_difference() {
    let cases = cases::all();
    let recorded = recording::read(None);
    let decided = |(case, entry): (&Case, &Entry)| compare::decided(case, &entry.answer, DIFFERENCES);
    let answers: Vec<_> = cases.iter().zip(&recorded).map(decided).collect();
    let pairs = pairs(&cases, &recorded, &answers);
    let mut complaints = recording::check(&cases, &recorded);
    complaints.extend(compare::compare(&pairs, DIFFERENCES));
    assert!(complaints.is_empty(), "{} complaints\n\n{}", complaints.len(), complaints.join("\n\n"));
}

#[test]
fn deuteron_answers_each_suite_as_triton_was_recorded_or_as_decided() {
    let mut complaints = Vec::new();
    for suite in SUITES {
        let cases = (suite.cases)();
        let recorded = recording::read(Some(suite.name));
        complaints.extend(recording::check(&cases, &recorded));
        let folder = Folder::new("suite");
        (suite.write)(Flavour::Deuteron, folder.path());
        let Some(server) = suite.deuteron(folder.path()) else { continue };
        let client = Client::new(&server, folder.path());
        let answers: Vec<_> = cases.iter().map(|case| client.ask(&case.ask)).collect();
        complaints.extend(compare::compare(&pairs(&cases, &recorded, &answers), suite.differences));
    }
    assert!(complaints.is_empty(), "{} complaints\n\n{}", complaints.len(), complaints.join("\n\n"));
}

#[test]
fn with_its_flag_health_is_as_triton_was_recorded() {
    let (cases, recorded) = (cases::all(), recording::read(None));
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--compat=triton"]);
    let client = Client::new(&server, folder.path());
    let mut count = 0;
    for (case, entry) in cases.iter().zip(&recorded).filter(|(case, _)| case.name.starts_with("health: GET /v2/")) {
        // What is said of a path or version that cannot be is not what a launcher looks at.
        if case.name.contains("ready") || case.name.ends_with("live") {
            let is_path = entry.answer.contains("Not Found") || entry.answer.contains("stol");
            if !is_path {
                assert_eq!(client.ask(&case.ask), entry.answer, "{}", case.name);
                count += 1;
            }
        }
    }
    assert_eq!(count, 9);
    let metadata = crate::support::http::get(server.http(), "/v2").unwrap().body;
    assert!(String::from_utf8_lossy(&metadata).starts_with(r#"{"name":"triton","#));
}

fn pairs<'a>(cases: &'a [Case], recorded: &'a [Entry], answers: &'a [String]) -> Vec<Pair<'a>> {
    let rows = cases.iter().zip(recorded).zip(answers);
    rows.map(|((case, entry), answer)| Pair { case, triton: &entry.answer, deuteron: answer }).collect()
}
