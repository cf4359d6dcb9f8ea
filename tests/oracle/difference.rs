//! Where Deuteron means to answer otherwise than tritonserver 2.51: one row per decision.
//!
//! A row says which answers of Triton it is about and what they become; the result is what Deuteron must answer, to
//! the byte. A difference that is not in this table fails, and so does a row that no answer needs any more.

use crate::oracle::{
    compare::{Becomes, Difference, On},
    rewrite,
};

/// The table. Rows apply from the first to the last, each to what the one before has made.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        decision: "a client's mistake in the JSON is 400, as the protocol says; Triton says 500",
        on: On::Every(|_, answer| answer.starts_with("500 application/json\n{\"error\"")),
        becomes: Becomes::Replaced("500 application/json", "400 application/json"),
    },
    Difference {
        decision: "an error's body is JSON, and its type says so",
        on: On::Every(|_, answer| answer.contains(" text/plain\n{\"error\":")),
        becomes: Becomes::Replaced("text/plain", "application/json"),
    },
    Difference {
        decision: "liveness has the protocol's JSON body; Triton's is empty",
        on: On::Cases(&["health: GET /v2/health/live"]),
        becomes: Becomes::Answer("200 application/json\n{\"live\":true}"),
    },
    Difference {
        decision: "readiness has the protocol's JSON body; Triton's is empty",
        on: On::Cases(&["health: GET /v2/health/ready", "health: GET /v2/health/ready?verbose=1"]),
        becomes: Becomes::Answer("200 application/json\n{\"live\":true,\"ready\":true}"),
    },
    Difference {
        decision: "a model's readiness has the protocol's JSON body; Triton's is empty",
        on: On::Cases(&[
            "health: GET /v2/models/identity_fp32/ready",
            "health: GET /v2/models/identity_fp32/versions/1/ready",
        ]),
        becomes: Becomes::Answer("200 application/json\n{\"name\":\"identity_fp32\",\"ready\":true}"),
    },
    Difference {
        decision: "floats are the shortest text that reads back to the same value of their datatype",
        on: On::Every(|_, answer| answer.starts_with("200 ")),
        becomes: Becomes::Rewritten(rewrite::shortest_floats),
    },
    Difference {
        decision: "the value of a class is the shortest text that reads back; Triton's has six decimals",
        on: On::Every(|case, answer| case.name.starts_with("classification: ") && answer.contains("\"data\":[")),
        becomes: Becomes::Rewritten(rewrite::shortest_classes),
    },
    Difference {
        decision: "the value of a class is the shortest text over gRPC too",
        on: On::Every(|case, _| case.name.starts_with("grpc classification: ")),
        becomes: Becomes::Rewritten(rewrite::shortest_raw_classes),
    },
    Difference {
        decision: "the value of a class is the shortest text as binary data too",
        on: On::Every(|case, _| case.name.starts_with("classification: ") && case.name.ends_with("as binary data")),
        becomes: Becomes::Rewritten(rewrite::shortest_binary_classes),
    },
    Difference {
        decision: "the value of a class beyond six decimals is not lost in its text",
        on: On::Cases(&["classification: fractions"]),
        becomes: Becomes::Replaced("\"0:3:pickle\"", "\"1e-9:3:pickle\""),
    },
    Difference {
        decision: "binary_data_output is the default of the listed outputs too, as the protocol says",
        on: On::Cases(&["mixed: all outputs binary, two listed"]),
        becomes: Becomes::Answer(
            "200 application/octet-stream\n\
             {\"model_name\":\"identity_two\",\"model_version\":\"1\",\"outputs\":[\
             {\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[1,1],\"parameters\":{\"binary_data_size\":4}},\
             {\"name\":\"OUTPUT1\",\"datatype\":\"INT32\",\"shape\":[1,1],\"parameters\":{\"binary_data_size\":4}}]}\n\
             binary 8: \\x00\\x00\\xe0@\\x07\\x00\\x00\\x00",
        ),
    },
    Difference {
        decision: "binary_data_output is the default of an output that does not say otherwise, as the protocol says",
        on: On::Cases(&["mixed: all outputs binary but one"]),
        becomes: Becomes::Answer(
            "200 application/octet-stream\n\
             {\"model_name\":\"identity_two\",\"model_version\":\"1\",\"outputs\":[\
             {\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[1,1],\"data\":[7.0]},\
             {\"name\":\"OUTPUT1\",\"datatype\":\"INT32\",\"shape\":[1,1],\"parameters\":{\"binary_data_size\":4}}]}\n\
             binary 4: \\x07\\x00\\x00\\x00",
        ),
    },
    Difference {
        decision: "an output asked for twice is refused, as later Tritons do; 2.51 answers it once",
        on: On::Cases(&["output: [{\"name\":\"OUTPUT0\"},{\"name\":\"OUTPUT0\"}]"]),
        becomes: Becomes::Answer(
            "400 application/json\n\
             {\"error\":\"[request id: <id_unknown>] output 'OUTPUT0' already exists in request\"}",
        ),
    },
    Difference {
        decision: "an output asked for twice is refused over gRPC too",
        on: On::Cases(&["grpc error: an output twice"]),
        becomes: Becomes::Answer(
            "InvalidArgument: [request id: <id_unknown>] output 'OUTPUT0' already exists in request",
        ),
    },
    Difference {
        decision: "a list of names without names is `[]`; Triton 2.51 writes `]`",
        on: On::Every(|_, answer| answer.contains("missing required input(s) ]")),
        becomes: Becomes::Replaced("missing required input(s) ]", "missing required input(s) []"),
    },
    Difference {
        decision: "the models are served by the built-in identity and by the ONNX engine, the oracle's by Python",
        on: On::Cases(&["model: GET /v2/models/addsub"]),
        becomes: Becomes::Replaced("\"platform\":\"python\"", "\"platform\":\"onnxruntime_onnx\""),
    },
    Difference {
        decision: "the built-in identity is the platform of its models, as Python is of the oracle's",
        on: On::Every(|_, answer| answer.starts_with("200 ") && answer.contains("\"platform\":\"python\"")),
        becomes: Becomes::Replaced("\"platform\":\"python\"", "\"platform\":\"identity\""),
    },
];
