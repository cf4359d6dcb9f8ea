//! The differential test without Triton: every case of the table played against Deuteron, and compared with the answers
//! of tritonserver 2.51 in `tests/oracle/recorded.txt`.

use crate::oracle::{
    answer::Client,
    case::Case,
    cases,
    compare::{self, Difference, Pair},
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
    let server = Server::deuteron(folder.path(), cases::DEUTERON_FLAGS);
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

/// The decisions that `--compat=triton` reverses: with it Deuteron answers as Triton.
const FOLLOWED: &[&str] = &[
    "a client's mistake in the JSON is 400, as the protocol says; Triton says 500",
    "liveness has the protocol's JSON body; Triton's is empty",
    "readiness has the protocol's JSON body; Triton's is empty",
    "a model's readiness has the protocol's JSON body; Triton's is empty",
    "readiness of an unknown model or version is 404, as later Tritons say; 2.51 calls it not ready",
    "readiness of an unknown version is 404 and names it",
    "version 0 is a version that is not there",
    "the value of a class is the shortest text that reads back; Triton's has six decimals",
    "the value of a class is the shortest text over gRPC too",
    "the value of a class is the shortest text as binary data too",
    "the value of a class beyond six decimals is not lost in its text",
    "binary_data_output is the default of the listed outputs too, as the protocol says",
    "binary_data_output is the default of an output that does not say otherwise, as the protocol says",
    "a configuration shows where the model runs",
];

/// Decisions beside the point there: the engine of the models, and the type of an error's body.
const SERVED: &str = "the models are served by the built-in identity, the oracle's by Python";
const ERROR_TYPE: &str = "an error's body is JSON, and its type says so";

#[test]
fn with_its_flag_deuteron_answers_as_triton_where_scripts_look() {
    let (cases, recorded) = (cases::all(), recording::read(None));
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--compat=triton"]);
    let client = Client::new(&server, folder.path());
    let select = |is_in: &dyn Fn(&str) -> bool| -> Vec<Difference> {
        DIFFERENCES.iter().filter(|difference| is_in(difference.decision)).copied().collect()
    };
    let followed = select(&|decision| FOLLOWED.contains(&decision));
    assert_eq!(followed.len(), FOLLOWED.len(), "each of them is a decision");
    let served = select(&|decision| decision == SERVED);
    let others = select(&|decision| !FOLLOWED.contains(&decision) && ![SERVED, ERROR_TYPE].contains(&decision));
    let mut count = 0;
    for (case, Entry { answer: triton, .. }) in cases.iter().zip(&recorded) {
        let is_followed = compare::decided(case, triton, &followed) != *triton;
        // Answers that differ for another reason as well are left to the test above.
        if is_followed && compare::decided(case, triton, &others) == *triton {
            assert_eq!(client.ask(&case.ask), compare::decided(case, triton, &served), "{}", case.name);
            count += 1;
        }
    }
    assert!(count >= FOLLOWED_CASES_MIN, "only {count} cases show it");
    let metadata = crate::support::http::get(server.http(), "/v2").unwrap().body;
    assert!(String::from_utf8_lossy(&metadata).starts_with(r#"{"name":"triton","#));
}

/// Least number of recorded answers that the test above must check.
const FOLLOWED_CASES_MIN: usize = 100;

fn pairs<'a>(cases: &'a [Case], recorded: &'a [Entry], answers: &'a [String]) -> Vec<Pair<'a>> {
    let rows = cases.iter().zip(recorded).zip(answers);
    rows.map(|((case, entry), answer)| Pair { case, triton: &entry.answer, deuteron: answer }).collect()
}
