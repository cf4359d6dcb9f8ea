//! Generate: plain JSON as the request, and the answer, as one object or as a stream of events.

use std::{fs, path::Path};

use crate::{
    oracle::{
        case::{Case, Table},
        compare::{Becomes, Difference, On},
        suites::{Suite, python},
    },
    support::repository::Flavour,
};

/// The suite.
pub const SUITE: Suite =
    Suite { name: "generate", flags: &[], own_flags: python::own_flags, cases, differences: DIFFERENCES, write };

/// Inputs of several shapes; it answers with its inputs.
const SHAPES: &str = "backend: 'python' max_batch_size: 4
    input [ { name: 'F' data_type: TYPE_FP32 dims: [ -1, 2 ] },
    { name: 'M' data_type: TYPE_INT64 dims: [ -1, 3, -1 ] optional: true },
    { name: 'H' data_type: TYPE_FP16 dims: 1 optional: true }, { name: 'S' data_type: TYPE_STRING dims: 2 optional: true },
    { name: 'parameters' data_type: TYPE_INT32 dims: 1 optional: true } ]
    output [ { name: 'F_OUT' data_type: TYPE_FP32 dims: [ -1, 2 ] }, { name: 'shape' data_type: TYPE_INT64 dims: -1 },
    { name: 'P' data_type: TYPE_STRING dims: 1 } ]";
/// Any number of answers.
const TOKENS: &str = "backend: 'python' model_transaction_policy { decoupled: true }
    input [ { name: 'PROMPT' data_type: TYPE_STRING dims: 1 }, { name: 'STREAM' data_type: TYPE_BOOL dims: 1 },
    { name: 'OPT' data_type: TYPE_INT32 dims: -1 optional: true } ]
    output [ { name: 'TEXT' data_type: TYPE_STRING dims: -1 }, { name: 'count', data_type: TYPE_INT32 dims: 1 } ]";

fn write(_: Flavour, repository: &Path) {
    let models = [
        ("shapes", SHAPES, include_str!("../../../oracle/generate_shapes.py")),
        ("tokens", TOKENS, include_str!("../../../oracle/generate_stream.py")),
    ];
    for (name, config, python) in models {
        let folder = repository.join(name);
        fs::create_dir_all(folder.join("1")).expect("the folder is ours");
        fs::write(folder.join("config.pbtxt"), config).expect("the folder is ours");
        fs::write(folder.join("1/model.py"), python).expect("the folder is ours");
    }
}

/// Endpoint behind `/v2/models/`, and body. A case has the name of both.
const CASES: &[(&str, &str)] = &[
    ("shapes/generate", r#"{"F":[1,2]}"#),
    ("shapes/generate", r#"{"F":[1,2,3,4],"id":"x"}"#),
    ("shapes/generate", r#"{"F":[1,2,3]}"#),
    ("shapes/generate", r#"{"F":1}"#),
    ("shapes/generate", r#"{"F":[[1,2],[3,4]]}"#),
    ("shapes/generate", r#"{"F":[]}"#),
    ("shapes/generate", r#"{"F":"a"}"#),
    ("shapes/generate", r#"{"F":null}"#),
    ("shapes/generate", r#"{"F":[1,2],"S":["a","b"]}"#),
    ("shapes/generate", r#"{"F":[1,2],"H":[1]}"#),
    ("shapes/generate", r#"{"F":[1,2],"nope":{"a":1}}"#),
    ("shapes/generate", r#"{"F":[1,2],"nope":[1]}"#),
    ("shapes/generate", r#"{"F":[1,2],"nope":null}"#),
    (
        "shapes/generate",
        r#"{"F":[1,2],"a":1,"b":true,"c":"x","d":1.5,"e":18446744073709551615,"g":-9223372036854775808}"#,
    ),
    ("shapes/generate", r#"{"F":[1,2],"parameters":{"x":1}}"#),
    ("shapes/generate", r#"{"F":[1,2],"id":5}"#),
    ("shapes/generate", r#"{"#),
    ("shapes/generate", r#""#),
    ("shapes/generate", r#"[1]"#),
    ("shapes/generate", r#"5"#),
    ("shapes/generate", r#"{"F":[1,2],"F":[3,4]}"#),
    ("nope/generate", r#"{"F":[1,2]}"#),
    ("shapes/versions/7/generate", r#"{"F":[1,2]}"#),
    ("shapes/versions/1/generate_stream", r#"{"F":[1,2]}"#),
    ("tokens/generate", r#"{"PROMPT":"hi","STREAM":false}"#),
    ("tokens/generate", r#"{"PROMPT":"hi","STREAM":false,"id":"q","n":1,"wide":true}"#),
    ("tokens/generate", r#"{"PROMPT":"hi","STREAM":false,"parameters":{"n":0}}"#),
    ("tokens/generate", r#"{"PROMPT":"hi","STREAM":false,"parameters":{"n":2}}"#),
    ("tokens/generate", r#"{"PROMPT":"hi","STREAM":false,"fail":0}"#),
    ("tokens/generate", r#"{"PROMPT":"hi","STREAM":false,"n":2,"fail":1}"#),
    ("tokens/generate_stream", r#"{"PROMPT":"hi","STREAM":false,"n":3,"fail":1}"#),
    ("tokens/generate_stream", r#"{"PROMPT":"hi","STREAM":false,"n":0}"#),
    ("tokens/generate_stream", r#"{"PROMPT":"hi","STREAM":false,"n":1,"fail":0}"#),
    ("tokens/generate_stream", r#"{"PROMPT":"hi","STREAM":false,"bad":true}"#),
    ("tokens/generate_stream", r#"{"PROMPT":"hi","STREAM":0}"#),
    ("tokens/generate_stream", r#"{"PROMPT":"hi"}"#),
    ("tokens/generate_stream", r#"{"PROMPT":"hi","STREAM":true,"parameters":5}"#),
    ("tokens/generate_stream", r#"{"PROMPT":"hi","STREAM":true,"parameters":{"PROMPT":"again"}}"#),
    ("tokens/generate_stream", r#"{"STREAM":true,"parameters":{"PROMPT":"inner","parameters":{"n":2}}}"#),
    ("tokens/generate", r#"{"STREAM":true,"PROMPT":"a","x":1,"parameters":{"x":2}}"#),
    ("tokens/generate", r#"{"STREAM":true,"PROMPT":"a","parameters":{"x":[1]}}"#),
    ("tokens/generate", r#"{"STREAM":true,"PROMPT":"a","parameters":{"id":"deep"}, "wide":true}"#),
    (
        "tokens/generate",
        r#"{"STREAM":true,"PROMPT":"a","sequence_id":7,"sequence_start":true,"priority":1,"timeout":5,"triton_x":1,"binary_data_output":true,"wide":true}"#,
    ),
    ("tokens/generate", r#"{"STREAM":true,"PROMPT":["a","b"]}"#),
    ("tokens/generate", r#"{"STREAM":true,"PROMPT":{"a":1}}"#),
    ("tokens/generate", r#"{"STREAM":true,"PROMPT":"a","OPT":[]}"#),
    ("tokens/generate", r#"{"STREAM":true,"PROMPT":"a","OPT":[1,2.5]}"#),
    ("tokens/generate", r#"{"STREAM":true,"PROMPT":"a","OPT":[99999999999]}"#),
    ("tokens/generate", r#"{"STREAM":true,"PROMPT":"a","priority":-1,"timeout":"x"}"#),
    ("shapes/generate", r#"{"F":[1,2],"M":[1,2,3,4,5,6]}"#),
    ("shapes/generate", r#"{"F":[1,2],"M":[1,2]}"#),
    ("shapes/generate", r#"{"F":[1,2,3,4],"S":["a"]}"#),
    ("shapes/generate", r#"{"F":[1,2],"S":["a,]\"[",""],"t":"\u00e9"}"#),
    ("shapes/generate", r#"{"F":[[1],[2]]}"#),
    ("shapes/generate", r#"{"F":[true,1]}"#),
    ("shapes/generate", r#"{"F":[1e3,-0.1]}"#),
    ("shapes/generate", r#"{"F":[1,2]} x"#),
    ("shapes/versions/0/generate", r#"{"F":[1,2]}"#),
    ("shapes/versions/99999999999999999999/generate", r#"{"F":[1,2]}"#),
    ("tokens/generate", r#"{"PROMPT":7,"STREAM":true}"#),
    ("tokens/generate", r#"{"PROMPT":[7],"STREAM":true}"#),
    ("tokens/generate", r#"{"PROMPT":["a",7],"STREAM":true}"#),
    ("tokens/generate", r#"{"PROMPT":"","STREAM":[false]}"#),
    ("tokens/generate_stream", r#"{"PROMPT":"a","STREAM":true,"n":3,"id":"three"}"#),
    ("tokens/generate_stream", r#"{}"#),
    ("tokens/generate_stream", r#"{"PROMPT":"a""#),
];

const DIFFERENCES: &[Difference] = &[
    Difference {
        decision: "a client's mistake in the JSON is 400, as the protocol says; Triton says 500",
        on: On::Every(|_, answer| answer.starts_with("500 application/json\n{\"error\"")),
        becomes: Becomes::Replaced("500 application/json", "400 application/json"),
    },
    Difference {
        decision: "only what has no size beforehand is sent in chunks",
        on: On::Every(|_, answer| {
            answer.starts_with("200 application/json chunked") || answer.starts_with("400 application/json chunked")
        }),
        becomes: Becomes::Replaced("application/json chunked", "application/json"),
    },
    Difference {
        decision: "generate without exactly one response is refused with 400; Triton says so with 200",
        on: On::Every(|_, answer| answer.contains("generate expects model to produce exactly 1 response")),
        becomes: Becomes::Replaced("200 application/json", "400 application/json"),
    },
    Difference {
        decision: "a model's error has the status that it has for an inference; Triton reads a code that it has freed",
        on: On::Every(|_, answer| answer.starts_with("400") && answer.ends_with(r#"{"error":"An Error Occurred"}"#)),
        becomes: Becomes::Replaced("400 application/json", "500 application/json"),
    },
    Difference {
        decision: "the same as an event",
        on: On::Every(|_, answer| answer.starts_with("400 text/event-stream")),
        becomes: Becomes::Replaced("400 text/event-stream", "500 text/event-stream"),
    },
    Difference {
        decision: "an integer of 64 bits stays one; Triton makes a double of it where it has no sign",
        on: On::Every(|case, _| case.name.contains(":18446744073709551615")),
        becomes: Becomes::Replaced("18446744073709553000.0", "18446744073709551615"),
    },
    Difference {
        decision: "an FP32 is the shortest decimal that reads back to it",
        on: On::Every(|_, answer| answer.contains("-0.10000000149011612")),
        becomes: Becomes::Replaced("-0.10000000149011612", "-0.1"),
    },
    Difference {
        decision: "what is no integer is told with its place",
        on: On::Cases(&[r#"generate: tokens/generate {"STREAM":true,"PROMPT":"a","OPT":[1,2.5]}"#]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"Unable to parse 'data': element 1 of input 'OPT' is 2.5, which is not an \
             integer as INT32 requires\"}",
        ),
    },
    Difference {
        decision: "a number that the datatype does not hold is refused; Triton takes some of its bits",
        on: On::Cases(&[r#"generate: tokens/generate {"STREAM":true,"PROMPT":"a","OPT":[99999999999]}"#]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"Unable to parse 'data': element 0 of input 'OPT' is 99999999999, which is \
             out of the range of INT32\"}",
        ),
    },
    Difference {
        decision: "lists within lists are a tensor with their shape, and are answered by such; Triton refuses them",
        on: On::Cases(&[r#"generate: shapes/generate {"F":[[1,2],[3,4]]}"#]),
        becomes: Becomes::Answer(
            "200 application/json\n{\"F_OUT\":[[[1.0,2.0],[3.0,4.0]]],\"P\":\"{}\",\"model_name\":\"shapes\",\
             \"model_version\":\"1\",\"shape\":[[1,2,2]]}",
        ),
    },
    Difference {
        decision: "lists within lists of another shape are refused as a flat list is",
        on: On::Cases(&[r#"generate: shapes/generate {"F":[[1],[2]]}"#]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"The schema can not convert input 'F' to tensor with proper shape\"}",
        ),
    },
    Difference {
        decision: "a list as a parameter is refused with the places for it",
        on: On::Every(|_, answer| answer.contains("It should be either 'int', 'bool', or 'string'.")),
        becomes: Becomes::Replaced(
            "or 'string'.",
            "or 'string'. A list or an object is the value of an input, or JSON text in a string.",
        ),
    },
    Difference {
        decision: "a mistake in an input names the inputs of the model",
        on: On::Every(|case, answer| case.name.contains(" shapes/") && is_of_inputs(answer)),
        becomes: Becomes::Rewritten(|answer| {
            let inputs = "F FP32 [-1,-1,2] of a multiple of 2 elements; \
                          M INT64 [-1,-1,3,-1] of a multiple of 3 elements (optional); \
                          H FP16 [-1,1] of any number of elements (optional); \
                          S BYTES [-1,2] of a multiple of 2 elements (optional); \
                          parameters INT32 [-1,1] of any number of elements (optional)";
            answer.replace("\"}", &format!(" (inputs of model 'shapes': {inputs})\"}}"))
        }),
    },
    Difference {
        decision: "a mistake in an input names the inputs of the model, without batches too",
        on: On::Every(|case, answer| case.name.contains(" tokens/") && is_of_inputs(answer)),
        becomes: Becomes::Rewritten(|answer| {
            let inputs = "PROMPT BYTES [1] of 1 element; STREAM BOOL [1] of 1 element; \
                          OPT INT32 [-1] of any number of elements (optional)";
            answer.replace("\"}", &format!(" (inputs of model 'tokens': {inputs})\"}}"))
        }),
    },
];

fn cases() -> Vec<Case> {
    let mut table = Table::new("generate");
    for (path, body) in CASES {
        table.post(&format!("{path} {body}"), &format!("/v2/models/{path}"), &[], body.as_bytes());
    }
    let coded = [("Content-Encoding", "gzip")];
    table.post("a body that is compressed", "/v2/models/shapes/generate", &coded, b"{}");
    table.verb("GET", "/v2/models/shapes/generate");
    table.verb("GET", "/v2/models/tokens/generate_stream");
    table.into_cases()
}

/// Returns true for a refusal of an input or parameter.
fn is_of_inputs(answer: &str) -> bool {
    let others = [
        "Unable to parse 'id'",
        "failed to parse the request JSON buffer",
        "attempt to get members",
        "failed to get model version",
        "Unsupported content-encoding",
        "generate expects model",
    ];
    answer.starts_with("400 application/json\n{\"error\"") && !others.iter().any(|text| answer.contains(text))
}
