//! Sequences: their begin and end, requests outside of one, and requests that run again.
//!
//! Some things are never sent, because tritonserver 2.51 does not survive them, or does not answer: a string id to a
//! model that is told ids as numbers, and `sequence_end` with a request that is to run again. Ids that are strings are
//! told to no model here: the Python backend of 2.51 gets them in pieces of 128 bytes.

use std::{path::Path, slice::from_ref};

use crate::{
    oracle::{
        case::{Case, Table},
        compare::{Becomes, Difference, On},
        suites::{Suite, model},
    },
    support::{protobuf::Message, repository::Flavour},
};

/// The suite.
pub const SUITE: Suite =
    Suite { name: "sequence", flags: &[], own_flags: || Some(Vec::new()), cases, differences: DIFFERENCES, write };

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

fn write(flavour: Flavour, repository: &Path) {
    let tensors = "instance_group { count: 1 kind: KIND_CPU }\n\
        input { name: \"INPUT\" data_type: TYPE_INT32 dims: 1 }\noutput { name: \"OUTPUT\" data_type: TYPE_INT32 dims: 1 }";
    let control = |name: &str, kind: &str, rest: &str| {
        format!("control_input {{ name: \"{name}\" control {{ kind: CONTROL_SEQUENCE_{kind} {rest} }} }}\n")
    };
    let flag = |kind: &str| control(kind, kind, "int32_false_true: [ 0, 1 ]");
    let by_row = flag("START") + &flag("READY");
    let by_id = by_row.clone() + &flag("END") + &control("CORRID", "CORRID", "data_type: TYPE_UINT64");
    let idle = "max_sequence_idle_microseconds: 60000000";
    let sums = include_str!("../../../oracle/accumulate.py");
    let config = format!("max_batch_size: 3\n{tensors}\nsequence_batching {{ {idle}\n{by_row}}}");
    model(flavour, repository, "by_row", "sequence", &config, sums);
    let oldest = "oldest { max_candidate_sequences: 4 }";
    let config = format!("max_batch_size: 3\n{tensors}\nsequence_batching {{ {idle} {oldest}\n{by_id}}}");
    model(flavour, repository, "by_id", "dyna_sequence", &config, sums);
    let config = format!("max_batch_size: 3\n{tensors}\nsequence_batching {{ {idle} iterative_sequence: true }}");
    model(
        flavour,
        repository,
        "iterative",
        "iterative_sequence",
        &config,
        include_str!("../../../oracle/iterative.py"),
    );
}

fn body(parameters: &str, shape: &str, values: &str) -> String {
    format!(
        r#"{{"parameters":{{{parameters}}},"inputs":[{{"name":"INPUT","shape":{shape},"datatype":"INT32","data":{values}}}]}}"#
    )
}

/// Cases by a line each: `^` begins, `$` ends, then the id as JSON has it, and a value.
fn run(table: &mut Table, model: &str, steps: &[&str]) {
    for step in steps {
        let (sequence, value) = step.rsplit_once(' ').expect("a step has a value");
        let id = sequence.trim_start_matches('^').trim_end_matches('$');
        let mut parameters = format!(r#""sequence_id":{id}"#);
        if sequence.starts_with('^') {
            parameters.push_str(r#","sequence_start":true"#);
        }
        if sequence.ends_with('$') {
            parameters.push_str(r#","sequence_end":true"#);
        }
        table.infer(&format!("{model} {step}"), model, &body(&parameters, "[1,1]", &format!("[{value}]")));
    }
}

/// The same over gRPC, where an id is a number or a string.
fn call(table: &mut Table, model: &str, name: &str, id: Option<Message>, flags: &[(&str, Message)], value: i32) {
    let parameter = |key: &str, value: Message| Message::new().bytes(1, key).message(2, value);
    let input = Message::new().bytes(1, "INPUT").bytes(2, "INT32").packed(3, &[1, 1]);
    let mut message = Message::new().bytes(1, model);
    if let Some(id) = id {
        message = message.message(4, parameter("sequence_id", id));
    }
    for (key, value) in flags {
        message = message.message(4, parameter(key, value.clone()));
    }
    let message = message.message(5, input).bytes(7, value.to_le_bytes());
    table.call(&format!("{model} by gRPC {name}"), INFER, message);
}

fn cases() -> Vec<Case> {
    let mut table = Table::new("sequence");
    run(
        &mut table,
        "by_row",
        &[
            "^1 5",
            "^2 7",
            "1 1",
            "2 1",
            "^3 100",
            "3 1",
            "1$ 1",
            "2 2",
            "^4 40",
            "3$ 1",
            "2$ 3",
            "4$ 2",
            "1 1",
            "9 1",
            "9$ 1",
            "^9$ 8",
            "9 1",
            "^5 1",
            "^5 2",
            "5$ 3",
            "0 1",
            "^0 1",
            "^0$ 1",
            "^\"a\" 5",
            "\"a\" 6",
            "\"b\" 6",
            "\"a\"$ 7",
            "\"a\" 1",
            "\"\" 1",
            "^\"\" 1",
            "^\"7\" 1",
            "7 1",
            "\"7\"$ 2",
            "^18446744073709551615$ 3",
        ],
    );
    run(
        &mut table,
        "by_id",
        &["^41 5", "41 6", "^42 7", "41$ 1", "42$ 1", "41 1", "^43$ 2", "^44 1", "^44 2", "44$ 3"],
    );
    run(&mut table, "iterative", &["^3 4", "3 4", "^3 1", "3 1"]);
    for (name, parameters) in [
        ("no id", ""),
        ("no id, but a beginning", r#""sequence_start":true"#),
        ("a negative id", r#""sequence_id":-1,"sequence_start":true"#),
        ("an id of 2^64", r#""sequence_id":18446744073709551616,"sequence_start":true"#),
        ("a fraction", r#""sequence_id":1.5,"sequence_start":true"#),
        ("a boolean id", r#""sequence_id":true,"sequence_start":true"#),
        ("an id that is null", r#""sequence_id":null,"sequence_start":true"#),
        ("a beginning that is a number", r#""sequence_id":50,"sequence_start":1"#),
        ("a beginning that is a string", r#""sequence_id":50,"sequence_start":"true""#),
        ("an end that is a number", r#""sequence_id":50,"sequence_start":true,"sequence_end":1"#),
    ] {
        table.infer(&format!("by_row {name}"), "by_row", &body(parameters, "[1,1]", "[1]"));
    }
    for (name, size) in [("an id of 128 bytes", 128), ("an id of 129 bytes", 129)] {
        let parameters = format!(r#""sequence_id":"{}","sequence_start":true,"sequence_end":true"#, "a".repeat(size));
        table.infer(&format!("by_row {name}"), "by_row", &body(&parameters, "[1,1]", "[1]"));
    }
    let begin = r#""sequence_id":60,"sequence_start":true"#;
    table.infer("by_row two rows", "by_row", &body(begin, "[2,1]", "[1,2]"));
    table.infer("by_row no row", "by_row", &body(begin, "[0,1]", "[]"));
    table.infer("iterative without an id", "iterative", &body("", "[1,1]", "[7]"));
    table.infer("iterative without an id, but an end", "iterative", &body(r#""sequence_end":true"#, "[1,1]", "[3]"));
    table.infer("iterative once", "iterative", &body("", "[1,1]", "[1]"));
    let (number, text) = (|id: i64| Some(Message::new().int(2, id)), |id: &str| Some(Message::new().bytes(3, id)));
    let yes = || Message::new().int(1, 1);
    let (start, end) = (("sequence_start", yes()), ("sequence_end", yes()));
    call(&mut table, "by_id", "^71 5", number(71), from_ref(&start), 5);
    call(&mut table, "by_id", "71 6", number(71), &[], 6);
    call(&mut table, "by_id", "71$ 7", number(71), from_ref(&end), 7);
    call(&mut table, "by_id", "71 again", number(71), &[], 7);
    call(&mut table, "by_row", "^a 5", text("a"), from_ref(&start), 5);
    call(&mut table, "by_row", "a$ 6", text("a"), from_ref(&end), 6);
    call(&mut table, "by_row", "no id", None, from_ref(&start), 6);
    call(&mut table, "by_row", "id 0", number(0), from_ref(&start), 6);
    call(&mut table, "by_row", "an empty id", text(""), from_ref(&start), 6);
    call(&mut table, "by_row", "an id of 129 bytes", text(&"a".repeat(129)), from_ref(&start), 6);
    call(&mut table, "by_row", "a boolean id", Some(yes()), from_ref(&start), 6);
    call(
        &mut table,
        "by_row",
        "a beginning that is a number",
        number(72),
        &[("sequence_start", Message::new().int(2, 1))],
        6,
    );
    call(
        &mut table,
        "by_row",
        "an end that is a string",
        number(72),
        &[("sequence_end", Message::new().bytes(3, "x"))],
        6,
    );
    call(&mut table, "iterative", "without an id", None, &[], 5);
    table.into_cases()
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        decision: "a client's mistake in the JSON is 400, as the protocol says; Triton says 500",
        on: On::Every(|_, answer| answer.starts_with("500 application/json\n{\"error\"")),
        becomes: Becomes::Replaced("500 application/json", "400 application/json"),
    },
    Difference {
        decision: "an optional member that is null counts as absent",
        on: On::Cases(&["sequence: by_row an id that is null"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"inference request to model 'by_row' must specify a non-zero or non-empty correlation ID\"}",
        ),
    },
    Difference {
        decision: "a batch of no rows is told as that",
        on: On::Cases(&["sequence: by_row no row"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"[request id: <id_unknown>] inference request batch-size must be >= 1 for 'by_row'\"}",
        ),
    },
];
