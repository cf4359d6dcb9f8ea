//! The differential test without Triton: every case of the table played against Deuteron, and compared with what
//! tritonserver 2.51 answered when `tests/oracle/recorded.txt` was written.

#[path = "oracle/mod.rs"]
mod oracle;
mod support;

use oracle::{answer::Client, cases, compare, difference::DIFFERENCES, recording};
use support::{
    repository::{self, Flavour},
    server::Server,
};

#[test]
fn deuteron_answers_as_triton_was_recorded_or_as_decided() {
    let cases = cases::all();
    let recorded = recording::read();
    let mut complaints = recording::check(&cases, &recorded);
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    let client = Client::new(&server);
    let answers: Vec<_> = cases.iter().map(|case| client.ask(&case.ask)).collect();
    let pairs: Vec<_> = (cases.iter().zip(&recorded).zip(&answers))
        .map(|((case, entry), answer)| compare::Pair {
            case,
            triton: &entry.answer,
            deuteron: answer,
        })
        .collect();
    complaints.extend(compare::compare(&pairs, DIFFERENCES));
    assert!(
        complaints.is_empty(),
        "{} complaints\n\n{}",
        complaints.len(),
        complaints.join("\n\n")
    );
}
