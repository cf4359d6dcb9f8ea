//! Shared memory of the host: registering, listing and unregistering, and tensors in it. Triton 2.51 allows it always;
//! later ones want the flag that Deuteron is started with.

use std::{fs, path::Path};

use crate::{
    oracle::{
        case::{Case, Table},
        compare::{Becomes, Difference, On},
        suites::{Suite, model},
    },
    support::{protobuf::Message, repository::Flavour},
};

/// The suite.
pub const SUITE: Suite = Suite {
    name: "shared_memory",
    flags: &[],
    own_flags: || Some(vec!["--allow-client-shm=true".to_owned()]),
    cases,
    differences: DIFFERENCES,
    write,
};

const FP32: &str = "max_batch_size: 8\ninstance_group { count: 1 kind: KIND_CPU }\n\
    input { name: \"INPUT0\" data_type: TYPE_FP32 dims: -1 }\noutput { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: -1 }";

/// The memory that clients would have made. Requests read it, and outputs rewrite its own contents, so that any state
/// of it is right.
fn write(flavour: Flavour, repository: &Path) {
    let identity = include_str!("../../../oracle/identity.py");
    model(flavour, repository, "floats", "identity", FP32, identity);
    model(flavour, repository, "strings", "identity", &FP32.replace("TYPE_FP32", "TYPE_STRING"), identity);
    let floats: Vec<u8> = [1.5_f32, 2.5, 3.5, 4.5].iter().flat_map(|value| value.to_le_bytes()).collect();
    for (name, contents) in [("floats", floats.as_slice()), ("strings", b"\x03\0\0\0abc\x02\0\0\0de"), ("target", b"")]
    {
        let path = format!("/dev/shm/deuteron_oracle_{name}");
        let mut bytes = contents.to_vec();
        bytes.resize(64, 0);
        let is_there = fs::read(&path).is_ok_and(|there| there.len() == 64 && (contents.is_empty() || there == bytes));
        if !is_there {
            fs::write(path, bytes).expect("shared memory can be made");
        }
    }
}

const SYSTEM: &str = "/v2/systemsharedmemory";
const CUDA: &str = "/v2/cudasharedmemory";

fn register(table: &mut Table, region: &str, body: &str) {
    let name = format!("register '{region}' with {body}");
    let place = if region.is_empty() { String::new() } else { format!("/region/{region}") };
    table.post(&name, &format!("{SYSTEM}{place}/register"), &[], body.as_bytes());
}

fn cases() -> Vec<Case> {
    let mut table = Table::new("shared memory");
    table.get(&[
        "/v2/systemsharedmemory/status",
        "/v2/cudasharedmemory/status",
        "/v2/systemsharedmemory/region/x/status",
        "/v2/cudasharedmemory/region/x/status",
    ]);
    registrations(&mut table);
    table.get(&[
        "/v2/systemsharedmemory/region/floats/status",
        "/v2/cudasharedmemory/region/floats/status",
        "/v2/systemsharedmemory/region//status",
        "/v2/systemsharedmemory/register",
    ]);
    table.verb("POST", "/v2/systemsharedmemory/status");
    inputs(&mut table);
    outputs(&mut table);
    by_grpc(&mut table);
    for path in ["/region/target/unregister", "/region/nope/unregister", "/unregister"] {
        table.post(&format!("POST {path}"), &format!("{SYSTEM}{path}"), &[], b"");
    }
    table.post("unregister all of GPUs", &format!("{CUDA}/unregister"), &[], b"");
    table.post("register of a GPU without a name", &format!("{CUDA}/register"), &[], b"{}");
    table.raw("what is left", crate::support::http::request("GET", &format!("{SYSTEM}/status"), &[], b""));
    table.into_cases()
}

fn registrations(table: &mut Table) {
    register(table, "", r#"{"key":"/deuteron_oracle_floats","byte_size":64}"#);
    for body in [
        "",
        "{",
        "[]",
        r#"{"byte_size":64}"#,
        r#"{"key":"/deuteron_oracle_floats"}"#,
        r#"{"key":1,"byte_size":64}"#,
        r#"{"key":"/deuteron_oracle_floats","byte_size":"x"}"#,
        r#"{"key":"/deuteron_oracle_floats","byte_size":-1}"#,
        r#"{"key":"/deuteron_oracle_floats","byte_size":64,"offset":-1}"#,
        r#"{"key":"/deuteron_oracle_nope","byte_size":64}"#,
        r#"{"key":"","byte_size":64}"#,
        r#"{"key":"/../etc/passwd","byte_size":4}"#,
        r#"{"key":"/deuteron_oracle_floats","byte_size":65}"#,
        r#"{"key":"/deuteron_oracle_floats","byte_size":64,"offset":1}"#,
        r#"{"key":"/deuteron_oracle_floats","byte_size":0}"#,
    ] {
        register(table, "floats", body);
    }
    for name in ["floats", "strings", "target"] {
        register(table, name, &format!(r#"{{"key":"/deuteron_oracle_{name}","byte_size":64}}"#));
    }
    table.post(
        "register a name again",
        &format!("{SYSTEM}/region/floats/register"),
        &[],
        br#"{"key":"/deuteron_oracle_floats","byte_size":64}"#,
    );
}

/// The parameters of a tensor that lies in a region.
fn within(region: &str, more: &str) -> String {
    format!(r#"{{"shared_memory_region":"{region}"{more}}}"#)
}

fn infer(table: &mut Table, name: &str, (model, datatype, shape): (&str, &str, &str), input: &str, output: &str) {
    let outputs = if output.is_empty() {
        String::new()
    } else {
        format!(r#","outputs":[{{"name":"OUTPUT0","parameters":{output}}}]"#)
    };
    let input = format!(r#"{{"name":"INPUT0","datatype":"{datatype}","shape":{shape},"parameters":{input}}}"#);
    table.infer(name, model, &format!(r#"{{"id":"7","inputs":[{input}]{outputs}}}"#));
}

const FLOATS: (&str, &str, &str) = ("floats", "FP32", "[1,4]");

fn inputs(table: &mut Table) {
    let size = |size: &str| format!(r#","shared_memory_byte_size":{size}"#);
    let both =
        |size: &str, offset: &str| format!(r#","shared_memory_byte_size":{size},"shared_memory_offset":{offset}"#);
    for more in [
        size("16"),
        size("12"),
        size("20"),
        size("0"),
        size("\"x\""),
        size("18446744073709551608"),
        String::new(),
        both("16", "48"),
        both("16", "49"),
        both("16", "64"),
        both("16", "18446744073709551608"),
        both("18446744073709551608", "16"),
        both("16", "-1"),
        both("16", "\"x\""),
    ] {
        infer(table, &format!("an input{more}"), FLOATS, &within("floats", &more), "");
    }
    infer(table, "an input in no region", FLOATS, &within("nope", &size("16")), "");
    infer(table, "an input in a region that is a number", FLOATS, r#"{"shared_memory_region":1}"#, "");
    infer(table, "an input with a size and no region", FLOATS, r#"{"shared_memory_byte_size":16}"#, "");
    for (shape, bytes) in [("[1,2]", "13"), ("[1,3]", "13"), ("[1,1]", "13"), ("[1,2]", "12"), ("[1,2]", "10")] {
        let name = format!("strings {shape} in {bytes} bytes");
        infer(table, &name, ("strings", "BYTES", shape), &within("strings", &size(bytes)), "");
    }
}

fn outputs(table: &mut Table) {
    let input = within("floats", r#","shared_memory_byte_size":16"#);
    for more in [
        r#","shared_memory_byte_size":16"#,
        r#","shared_memory_byte_size":64"#,
        r#","shared_memory_byte_size":16,"shared_memory_offset":16"#,
        r#","shared_memory_byte_size":15"#,
        r#","shared_memory_byte_size":16,"shared_memory_offset":49"#,
        r#","shared_memory_byte_size":16,"shared_memory_offset":64"#,
        r#","shared_memory_byte_size":16,"classification":1"#,
        r#","shared_memory_byte_size":16,"binary_data":true"#,
        r#","shared_memory_byte_size":16,"binary_data":false"#,
    ] {
        infer(table, &format!("an output{more}"), FLOATS, &input, &within("target", more));
    }
    infer(table, "an output in no region", FLOATS, &input, &within("nope", r#","shared_memory_byte_size":16"#));
    infer(table, "an output with a size and no region", FLOATS, &input, r#"{"shared_memory_byte_size":16}"#);
    let strings = within("strings", r#","shared_memory_byte_size":13"#);
    for bytes in ["13", "12"] {
        let output = within("target", &format!(r#","shared_memory_byte_size":{bytes}"#));
        infer(table, &format!("strings to {bytes} bytes"), ("strings", "BYTES", "[1,2]"), &strings, &output);
    }
}

fn by_grpc(table: &mut Table) {
    let status = "/inference.GRPCInferenceService/SystemSharedMemoryStatus";
    table.call("status of one by gRPC", status, Message::new().bytes(1, "floats"));
    table.call("status of none by gRPC", status, Message::new().bytes(1, "nope"));
    let cuda = "/inference.GRPCInferenceService/CudaSharedMemoryStatus";
    table.call("status of GPUs by gRPC", cuda, Message::new());
    table.call("status of a GPU's region by gRPC", cuda, Message::new().bytes(1, "nope"));
    let register = "/inference.GRPCInferenceService/SystemSharedMemoryRegister";
    let region = |name: &str, key: &str| Message::new().bytes(1, name).bytes(2, key).int(4, 64);
    table.call("register again by gRPC", register, region("floats", "/deuteron_oracle_floats"));
    table.call("register nothing by gRPC", register, region("nope", "/deuteron_oracle_nope"));
    let unregister = "/inference.GRPCInferenceService/SystemSharedMemoryUnregister";
    table.call("unregister nothing by gRPC", unregister, Message::new().bytes(1, "nope"));

    let text = |text: &str| Message::new().bytes(3, text);
    let number = |number: i64| Message::new().int(2, number);
    let truth = || Message::new().int(1, 1);
    let parameters = |tensor: Message, parameters: Vec<(&str, Message)>| {
        let entry = |tensor: Message, (key, value)| tensor.message(4, Message::new().bytes(1, key).message(2, value));
        parameters.into_iter().fold(tensor, entry)
    };
    let region =
        |name: &str, size| vec![("shared_memory_region", text(name)), ("shared_memory_byte_size", number(size))];
    let with = |key, value| [region("floats", 16), vec![(key, value)]].concat();
    let mut infer =
        |name: &str, input: Vec<(&str, Message)>, contents: Option<Message>, output: Vec<(&str, Message)>| {
            let tensor = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 4]);
            let tensor = parameters(tensor, input);
            let tensor = contents.into_iter().fold(tensor, |tensor, contents| tensor.message(5, contents));
            let request = Message::new().bytes(1, "floats").bytes(3, "7").message(5, tensor);
            // The parameters of an output have another field number than those of an input.
            let asked = Message::new().bytes(1, "OUTPUT0");
            let entry =
                |tensor: Message, (key, value)| tensor.message(2, Message::new().bytes(1, key).message(2, value));
            let asked = output.into_iter().fold(asked, entry);
            table.call(name, "/inference.GRPCInferenceService/ModelInfer", request.message(6, asked));
        };
    infer("an input by gRPC", region("floats", 16), None, vec![]);
    infer("an input and an output by gRPC", region("floats", 16), None, region("target", 16));
    infer("an output too small by gRPC", region("floats", 16), None, region("target", 15));
    infer("an input too small by gRPC", region("floats", 12), None, vec![]);
    infer("an input in no region by gRPC", region("nope", 16), None, vec![]);
    infer("an output in no region by gRPC", region("floats", 16), None, region("nope", 16));
    infer("an input without a size by gRPC", region("floats", 16)[..1].to_vec(), None, vec![]);
    infer("an output without a size by gRPC", region("floats", 16), None, region("target", 16)[..1].to_vec());
    infer("an input with a size alone by gRPC", region("floats", 16)[1..].to_vec(), None, vec![]);
    infer("an input with an offset by gRPC", with("shared_memory_offset", number(48)), None, vec![]);
    infer("an input with a negative offset by gRPC", with("shared_memory_offset", number(-16)), None, vec![]);
    infer("an input with an offset that is true by gRPC", with("shared_memory_offset", truth()), None, vec![]);
    infer("an input with a negative size by gRPC", region("floats", -16), None, vec![]);
    let wrong = vec![("shared_memory_region", number(1)), ("shared_memory_byte_size", number(16))];
    infer("an input in a region that is a number by gRPC", wrong, None, vec![]);
    let wrong = vec![("shared_memory_region", text("floats")), ("shared_memory_byte_size", truth())];
    infer("an input with a size that is true by gRPC", wrong, None, vec![]);
    infer("an input with contents too by gRPC", region("floats", 16), Some(Message::new().int(2, 1)), vec![]);
    let classes = [region("target", 16), vec![("classification", number(1))]].concat();
    infer("an output with classes by gRPC", region("floats", 16), None, classes);
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        decision: "an error's body is JSON, and its type says so",
        on: On::Every(|_, answer| answer.contains(" text/plain\n{\"error\":")),
        becomes: Becomes::Replaced("text/plain", "application/json"),
    },
    Difference {
        decision: "a client's mistake in the JSON is 400, as the protocol says; Triton says 500",
        on: On::Every(|_, answer| {
            answer.starts_with("500 application/json")
                && (answer.contains("attempt to access JSON") || answer.contains("failed to parse the request JSON"))
        }),
        becomes: Becomes::Replaced("500 application/json", "400 application/json"),
    },
    Difference {
        decision: "a key that names no memory is the client's mistake, as in later Tritons",
        on: On::Cases(&[r#"shared memory: register 'floats' with {"key":"","byte_size":64}"#]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"cannot register shared memory region 'floats' - invalid shm key ''\"}",
        ),
    },
    Difference {
        decision: "a key that leads elsewhere is the client's mistake, as in later Tritons",
        on: On::Cases(&[r#"shared memory: register 'floats' with {"key":"/../etc/passwd","byte_size":4}"#]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"cannot register shared memory region 'floats' - invalid shm key '/../etc/passwd'\"}",
        ),
    },
    Difference {
        decision: "an empty region is refused as any that does not fit; nothing is mapped that could fail",
        on: On::Cases(&[r#"shared memory: register 'floats' with {"key":"/deuteron_oracle_floats","byte_size":0}"#]),
        becomes: Becomes::Replaced("unable to process address spaceInvalid argument", "invalid args"),
    },
    Difference {
        decision: "no bytes are a range of a region, as in later Tritons, and too few for the tensor",
        on: On::Cases(&["shared memory: an input", r#"shared memory: an input,"shared_memory_byte_size":0"#]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"[request id: 7] input byte size mismatch for input 'INPUT0' for model 'floats'. \
             Expected 16, got 0\"}",
        ),
    },
    Difference {
        decision: "a range whose end is no number is refused, as in later Tritons",
        on: On::Cases(&[
            r#"shared memory: an input,"shared_memory_byte_size":18446744073709551608,"shared_memory_offset":16"#,
        ]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"Integer overflow detected: byte_size (18446744073709551608) + offset (16) \
             exceeds maximum value (18446744073709551615) for region 'floats'\"}",
        ),
    },
];
