//! Log settings, as clients read and change them. Deuteron lets them change these if a flag says so.

use std::path::Path;

use crate::{
    oracle::{
        case::{Case, Table},
        compare::{Becomes, Difference, On},
        suites::Suite,
    },
    support::{protobuf::Message, repository::Flavour},
};

/// The suite.
pub const SUITE: Suite = Suite {
    name: "logging",
    flags: &[],
    // It has no models.
    own_flags: || Some(["--allow-log-settings=true", "--exit-on-error=false"].map(str::to_owned).into()),
    cases,
    differences: DIFFERENCES,
    write: |_: Flavour, _: &Path| (),
};

const PATH: &str = "/v2/logging";

fn cases() -> Vec<Case> {
    let mut table = Table::new("logging");
    table.get(&[PATH, "/v2/logging?x=1"]);
    ["PUT", "DELETE"].into_iter().for_each(|method| table.verb(method, PATH));
    for body in [
        r#"{"log_verbose_level":1}"#,
        "{}",
        "",
        "{",
        "[]",
        "\"x\"",
        r#"{"log_file":"x"}"#,
        r#"{"log_file":5}"#,
        r#"{"log_info":1}"#,
        r#"{"log_info":"false"}"#,
        r#"{"log_info":null}"#,
        r#"{"log_warning":[]}"#,
        r#"{"log_error":{}}"#,
        r#"{"log_verbose_level":-1}"#,
        r#"{"log_verbose_level":"1"}"#,
        r#"{"log_verbose_level":1.5}"#,
        r#"{"log_verbose_level":true}"#,
        r#"{"log_format":"foo"}"#,
        r#"{"log_format":1}"#,
        r#"{"log_format":"iso8601"}"#,
        r#"{"log_format":"ISO8601"}"#,
        r#"{"log_format":"default"}"#,
        r#"{"other":1}"#,
        r#"{"log_info":false,"log_warning":false,"log_error":false}"#,
        r#"{"log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0}"#,
    ] {
        table.post(format!("POST {body}").trim_end(), PATH, &[], body.as_bytes());
    }
    by_grpc(&mut table);
    table.into_cases()
}

/// Only refusals: an answer that succeeds is a map, whose order differs each time.
fn by_grpc(table: &mut Table) {
    let (flag, level) = (|| Message::new().int(1, 1), || Message::new().int(2, 7));
    let text = |text: &str| Message::new().bytes(3, text);
    for (what, name, value) in [
        ("a level for a flag", "log_info", level()),
        ("a text for a flag", "log_warning", text("true")),
        ("nothing for a flag", "log_error", Message::new()),
        ("a flag for a level", "log_verbose_level", flag()),
        ("a text for a level", "log_verbose_level", text("2")),
        ("a level for a format", "log_format", level()),
        ("a format that is not there", "log_format", text("foo")),
        ("a file", "log_file", text("x")),
        ("a level for a file", "log_file", level()),
    ] {
        let entry = Message::new().bytes(1, name).message(2, value);
        table.call(what, "/inference.GRPCInferenceService/LogSettings", Message::new().message(1, entry));
    }
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        decision: "a client's mistake in the JSON is 400, as the protocol says; Triton says 500",
        on: On::Every(|_, answer| answer.starts_with("500 application/json\n{\"error\"")),
        becomes: Becomes::Replaced("500 application/json", "400 application/json"),
    },
    Difference {
        decision: "a format that is not there is the client's mistake; Triton says that it is not available now",
        on: On::Every(|_, answer| answer.contains("invalid argument for --log_format")),
        becomes: Becomes::Replaced("503 application/json", "400 application/json"),
    },
];
