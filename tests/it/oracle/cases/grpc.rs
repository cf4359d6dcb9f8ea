//! The same over gRPC: health, metadata, configuration and inference with typed and raw contents.

use crate::{
    oracle::case::{Case, Table},
    support::protobuf::Message,
};

/// The cases of this group.
pub fn cases() -> Vec<Case> {
    [health(), metadata(), raw(), typed(), contents(), errors(), parameters(), classification(), methods()].concat()
}

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// `name` and `version`, as most requests have them.
fn named(name: &str, version: &str) -> Message {
    let mut message = Message::new();
    if !name.is_empty() {
        message = message.bytes(1, name);
    }
    if !version.is_empty() {
        message = message.bytes(2, version);
    }
    message
}

/// An `InferInputTensor`.
fn tensor(name: &str, datatype: &str, shape: &[i64]) -> Message {
    Message::new().bytes(1, name).bytes(2, datatype).packed(3, shape)
}

/// A request with one input and raw contents.
fn one_raw(model: &str, datatype: &str, shape: &[i64], raw: &[u8]) -> Message {
    named(model, "").message(5, tensor("INPUT0", datatype, shape)).bytes(7, raw)
}

/// A request with one input and typed contents.
fn one_typed(model: &str, datatype: &str, shape: &[i64], contents: Message) -> Message {
    named(model, "").message(5, tensor("INPUT0", datatype, shape).message(5, contents))
}

/// An `InferRequestedOutputTensor`.
fn output(name: &str) -> Message {
    Message::new().bytes(1, name)
}

/// An entry of a `parameters` map.
fn parameter(key: &str, value: Message) -> Message {
    Message::new().bytes(1, key).message(2, value)
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn health() -> Vec<Case> {
    let mut table = Table::new("grpc health");
    let live = "/inference.GRPCInferenceService/ServerLive";
    let ready = "/inference.GRPCInferenceService/ServerReady";
    let model = "/inference.GRPCInferenceService/ModelReady";
    let check = "/grpc.health.v1.Health/Check";
    table.call("ServerLive", live, Message::new());
    table.call("ServerLive with an unknown field", live, Message::new().int(9, 1));
    table.call("ServerReady", ready, Message::new());
    table.call("ModelReady", model, named("identity_fp32", ""));
    table.call("ModelReady of version 1", model, named("identity_fp32", "1"));
    table.call("ModelReady of version 2", model, named("identity_fp32", "2"));
    table.call("ModelReady of version abc", model, named("identity_fp32", "abc"));
    table.call("ModelReady of version -1", model, named("identity_fp32", "-1"));
    table.call("ModelReady of version 0", model, named("identity_fp32", "0"));
    table.call("ModelReady of an unknown model", model, named("nope", ""));
    table.call("ModelReady without a name", model, Message::new());
    table.call("Check", check, Message::new());
    table.call("Check of the service", check, Message::new().bytes(1, "inference.GRPCInferenceService"));
    table.into_cases()
}

fn metadata() -> Vec<Case> {
    let mut table = Table::new("grpc metadata");
    let model = "/inference.GRPCInferenceService/ModelMetadata";
    let config = "/inference.GRPCInferenceService/ModelConfig";
    table.call("of the server", "/inference.GRPCInferenceService/ServerMetadata", Message::new());
    for name in ["identity_fp32", "identity_bytes", "identity_two", "identity_nobatch", "classify", "addsub"] {
        table.call(&format!("of {name}"), model, named(name, ""));
    }
    let rows = [
        ("identity_fp32", "1"),
        ("identity_fp32", "2"),
        ("identity_fp32", "abc"),
        ("identity_fp32", "-1"),
        ("identity_fp32", "1x"),
        ("identity_fp32", " 1"),
        ("identity_fp32", "99999999999999999999"),
        ("nope", ""),
        ("nope", "1"),
        ("nope", "abc"),
        ("", ""),
    ];
    for (name, version) in rows {
        table.call(&format!("of `{name}` version `{version}`"), model, named(name, version));
        table.call(&format!("config of `{name}` version `{version}`"), config, named(name, version));
    }
    for name in ["identity_fp32", "identity_two", "identity_bytes", "classify", "slow", "addsub"] {
        table.call(&format!("config of {name}"), config, named(name, ""));
    }
    table.into_cases()
}

fn raw() -> Vec<Case> {
    let mut table = Table::new("grpc raw");
    let rows: [(&str, &[u8]); 14] = [
        ("BOOL", b"\x01\x00"),
        ("INT8", b"\xff\x02"),
        ("INT16", b"\xff\xff\x02\x00"),
        ("INT32", b"\xff\xff\xff\xff\x02\x00\x00\x00"),
        ("INT64", b"\xff\xff\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x00\x00\x00"),
        ("UINT8", b"\xff\x02"),
        ("UINT16", b"\xff\xff\x02\x00"),
        ("UINT32", b"\xff\xff\xff\xff\x02\x00\x00\x00"),
        ("UINT64", b"\xff\xff\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x00\x00\x00"),
        ("FP16", b"\x00\x3c\x00\xc0"),
        ("BF16", b"\x80\x3f\x00\xc0"),
        ("FP32", b"\x00\x00\x80\x3f\x00\x00\xc0\x7f"),
        ("FP64", b"\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\xf8\x7f"),
        ("BYTES", b"\x03\x00\x00\x00a\x00\xff\x00\x00\x00\x00"),
    ];
    for (datatype, bytes) in rows {
        let model = format!("identity_{}", datatype.to_lowercase());
        table.call(datatype, INFER, one_raw(&model, datatype, &[1, 2], bytes));
    }
    let one = floats(&[1.0]);
    let fp32 = || one_raw("identity_fp32", "FP32", &[1, 1], &one);
    table.call("with an id", INFER, fp32().bytes(3, "my id"));
    table.call("in version 1", INFER, fp32().bytes(2, "1"));
    table.call("two rows", INFER, one_raw("identity_fp32", "FP32", &[2, 2], &floats(&[1.0, 2.0, 3.0, 4.0])));
    table.call("without batching", INFER, one_raw("identity_nobatch", "FP32", &[4], &floats(&[1.0, 2.0, 3.0, 4.0])));
    table.call("no elements", INFER, one_raw("identity_fp32", "FP32", &[1, 0], b""));
    table.call("a model that takes its time", INFER, one_raw("slow", "FP32", &[1, 1], &one));
    table.call("the output by name", INFER, fp32().message(6, output("OUTPUT0")));
    let two = |model| {
        let sides = tensor("INPUT1", "INT32", &[1, 1]);
        named(model, "").message(5, tensor("INPUT0", "FP32", &[1, 1])).message(5, sides).bytes(7, &one)
    };
    table.call("two inputs", INFER, two("identity_two").bytes(7, b"\x07\x00\x00\x00"));
    table.call("outputs turned round", INFER, {
        two("identity_two").bytes(7, b"\x07\x00\x00\x00").message(6, output("OUTPUT1")).message(6, output("OUTPUT0"))
    });
    table.call("raw contents for one input of two", INFER, two("identity_two"));
    table.call("more raw contents than inputs", INFER, fp32().bytes(7, b"more"));
    table.call("sum and difference", INFER, {
        let numbers: Vec<u8> = (1..=16i32).flat_map(i32::to_le_bytes).collect();
        let inputs = named("addsub", "").message(5, tensor("INPUT0", "INT32", &[1, 16]));
        inputs.message(5, tensor("INPUT1", "INT32", &[1, 16])).bytes(7, &numbers).bytes(7, &numbers)
    });
    table.into_cases()
}

fn typed() -> Vec<Case> {
    let mut table = Table::new("grpc typed");
    let mut row = |datatype: &str, contents: Message| {
        let model = format!("identity_{}", datatype.to_lowercase());
        table.call(datatype, INFER, one_typed(&model, datatype, &[1, 2], contents));
    };
    let doubles: Vec<u8> = [0.1f64, -2.5].iter().flat_map(|value| value.to_le_bytes()).collect();
    row("BOOL", Message::new().packed(1, &[1, 0]));
    row("INT8", Message::new().packed(2, &[-128, 127]));
    row("INT16", Message::new().packed(2, &[-32768, 32767]));
    row("INT32", Message::new().packed(2, &[-1, 2_147_483_647]));
    row("INT64", Message::new().packed(3, &[-1, i64::MAX]));
    row("UINT8", Message::new().packed(4, &[0, 255]));
    row("UINT16", Message::new().packed(4, &[0, 65535]));
    row("UINT32", Message::new().packed(4, &[0, 4_294_967_295]));
    row("UINT64", Message::new().packed(5, &[0, -1]));
    row("FP32", Message::new().bytes(6, floats(&[0.1, -2.5])));
    row("FP64", Message::new().bytes(7, doubles));
    row("BYTES", Message::new().bytes(8, b"a\x00\xff").bytes(8, b""));
    row("FP16", Message::new().bytes(6, floats(&[1.0, 2.0])));
    row("BF16", Message::new().bytes(6, floats(&[1.0, 2.0])));
    let mut named_row = |name: &str, datatype: &str, shape: &[i64], contents: Message| {
        let model = format!("identity_{}", datatype.to_lowercase());
        table.call(name, INFER, one_typed(&model, datatype, shape, contents));
    };
    named_row("numbers one by one", "INT32", &[1, 2], Message::new().int(2, 5).int(2, -6));
    named_row("INT8 out of its range", "INT8", &[1, 2], Message::new().packed(2, &[300, -129]));
    named_row("UINT16 out of its range", "UINT16", &[1, 2], Message::new().packed(4, &[65536, 1]));
    named_row("too few", "INT32", &[1, 2], Message::new().packed(2, &[1]));
    named_row("too many", "INT32", &[1, 2], Message::new().packed(2, &[1, 2, 3]));
    named_row("texts too few", "BYTES", &[1, 2], Message::new().bytes(8, "a"));
    named_row("texts too many", "BYTES", &[1, 1], Message::new().bytes(8, "a").bytes(8, "b"));
    named_row("empty contents", "INT32", &[1, 2], Message::new());
    named_row("empty contents for no elements", "INT32", &[1, 0], Message::new());
    table.into_cases()
}

/// Contents in the wrong field, in two places, or missing.
fn contents() -> Vec<Case> {
    let mut table = Table::new("grpc contents");
    let ints = || Message::new().packed(2, &[1]);
    table.call("nowhere", INFER, named("identity_fp32", "").message(5, tensor("INPUT0", "FP32", &[1, 1])));
    table.call(
        "nowhere for no elements",
        INFER,
        named("identity_fp32", "").message(5, tensor("INPUT0", "FP32", &[1, 0])),
    );
    table.call(
        "typed and raw",
        INFER,
        one_typed("identity_int32", "INT32", &[1, 1], ints()).bytes(7, b"\x01\x00\x00\x00"),
    );
    table.call("typed in two fields", INFER, one_typed("identity_int32", "INT32", &[1, 1], ints().packed(3, &[1])));
    table.call("integers for FP32", INFER, one_typed("identity_fp32", "FP32", &[1, 1], ints()));
    table.call("floats for INT32", INFER, {
        one_typed("identity_int32", "INT32", &[1, 1], Message::new().bytes(6, floats(&[1.0])))
    });
    table.call("int64 for INT32", INFER, one_typed("identity_int32", "INT32", &[1, 1], Message::new().packed(3, &[1])));
    table.call("texts for BOOL", INFER, one_typed("identity_bool", "BOOL", &[1, 1], Message::new().bytes(8, "x")));
    table.call("typed for one input and raw for the other", INFER, {
        let typed = tensor("INPUT0", "FP32", &[1, 1]).message(5, Message::new().bytes(6, floats(&[1.0])));
        named("identity_two", "")
            .message(5, typed)
            .message(5, tensor("INPUT1", "INT32", &[1, 1]))
            .bytes(7, b"\x07\x00\x00\x00")
    });
    table.into_cases()
}

fn errors() -> Vec<Case> {
    let mut table = Table::new("grpc error");
    let one = floats(&[1.0]);
    let fp32 = |shape: &[i64], raw: &[u8]| one_raw("identity_fp32", "FP32", shape, raw);
    table.call("an empty request", INFER, Message::new());
    table.call("no inputs", INFER, named("identity_fp32", ""));
    table.call("an unknown model", INFER, one_raw("nope", "FP32", &[1, 1], &one));
    table.call("an unknown version", INFER, fp32(&[1, 1], &one).bytes(2, "7"));
    table.call("a version that is text", INFER, fp32(&[1, 1], &one).bytes(2, "abc"));
    table.call("version 0", INFER, fp32(&[1, 1], &one).bytes(2, "0"));
    table.call("version -1", INFER, fp32(&[1, 1], &one).bytes(2, "-1"));
    table.call(
        "an unknown input",
        INFER,
        named("identity_fp32", "").message(5, tensor("NOPE", "FP32", &[1, 1])).bytes(7, &one),
    );
    table.call("an input twice", INFER, {
        fp32(&[1, 1], &one).message(5, tensor("INPUT0", "FP32", &[1, 1])).bytes(7, &one)
    });
    table.call("an input missing", INFER, one_raw("identity_two", "FP32", &[1, 1], &one));
    table.call("an input too many", INFER, {
        fp32(&[1, 1], &one).message(5, tensor("INPUT1", "FP32", &[1, 1])).bytes(7, &one)
    });
    table.call("an unknown output", INFER, fp32(&[1, 1], &one).message(6, output("NOPE")));
    table.call(
        "an output twice",
        INFER,
        fp32(&[1, 1], &one).message(6, output("OUTPUT0")).message(6, output("OUTPUT0")),
    );
    table.call("the wrong datatype", INFER, one_raw("identity_fp32", "INT32", &[1, 1], &one));
    table.call("an unknown datatype", INFER, one_raw("identity_fp32", "FLOAT", &[1, 1], &one));
    table.call("no datatype", INFER, one_raw("identity_fp32", "", &[1, 1], &one));
    table.call("no shape", INFER, fp32(&[], &one));
    table.call("a shape too short", INFER, fp32(&[1], &one));
    table.call("a shape too long", INFER, fp32(&[1, 1, 1], &one));
    table.call("a negative dimension", INFER, fp32(&[1, -1], &one));
    table.call("a dimension of -2", INFER, fp32(&[1, -2], &one));
    table.call("too many rows", INFER, fp32(&[9, 1], &floats(&[1.0; 9])));
    table.call("no rows", INFER, fp32(&[0, 1], b""));
    table.call("a product of 2^64", INFER, fp32(&[1 << 32, 1 << 32], &one));
    table.call("bytes beyond 2^63", INFER, fp32(&[1, 1 << 62], &one));
    table.call("too few bytes", INFER, fp32(&[1, 2], &one));
    table.call("too many bytes", INFER, fp32(&[1, 1], &floats(&[1.0, 2.0])));
    table.call("the wrong fixed shape", INFER, one_raw("identity_raw", "FP32", &[1, 3], &floats(&[1.0; 3])));
    table.call("rows that differ", INFER, {
        let right = tensor("INPUT1", "INT32", &[2, 1]);
        one_raw("identity_two", "FP32", &[1, 1], &one).message(5, right).bytes(7, b"\x01\x00\x00\x00\x02\x00\x00\x00")
    });
    table.call("a text that is cut off", INFER, one_raw("identity_bytes", "BYTES", &[1, 1], b"\x05\x00\x00\x00abc"));
    table.call("a length that is cut off", INFER, one_raw("identity_bytes", "BYTES", &[1, 1], b"\x05\x00"));
    table.call("texts too few", INFER, one_raw("identity_bytes", "BYTES", &[1, 2], b"\x01\x00\x00\x00a"));
    table.call("an id in the refusal", INFER, fp32(&[9, 1], &floats(&[1.0; 9])).bytes(3, "my id"));
    table.into_cases()
}

fn parameters() -> Vec<Case> {
    let mut table = Table::new("grpc parameter");
    let mut row = |name: &str, key: &str, value: Message| {
        let request = one_raw("identity_fp32", "FP32", &[1, 1], &floats(&[1.0]));
        table.call(name, INFER, request.message(4, parameter(key, value)));
    };
    let bool = || Message::new().int(1, 1);
    let int = |value: i64| Message::new().int(2, value);
    let text = || Message::new().bytes(3, "x");
    let double = || Message::new().double(4, 1.5);
    let uint = || Message::new().int(5, 1);
    row("a bool", "a", bool());
    row("an integer", "a", int(-1));
    row("a text", "a", text());
    row("a double", "a", double());
    row("an unsigned integer", "a", uint());
    row("no value", "a", Message::new());
    row("triton_x", "triton_x", int(1));
    row("triton_enable_empty_final_response", "triton_enable_empty_final_response", bool());
    row("priority", "priority", int(1));
    row("priority -1", "priority", int(-1));
    row("priority unsigned", "priority", uint());
    row("priority as text", "priority", text());
    row("timeout", "timeout", int(1_000_000));
    row("timeout as text", "timeout", text());
    row("timeout unsigned", "timeout", uint());
    row("sequence_id", "sequence_id", int(1));
    row("sequence_id as text", "sequence_id", text());
    row("sequence_id as bool", "sequence_id", bool());
    row("sequence_start", "sequence_start", bool());
    row("sequence_start as integer", "sequence_start", int(1));
    row("sequence_end as integer", "sequence_end", int(1));
    row("binary_data_output", "binary_data_output", bool());
    table.into_cases()
}

fn classification() -> Vec<Case> {
    let mut table = Table::new("grpc classification");
    let values = floats(&[1.125, 3.5, 0.5, 2.25]);
    let count = |value: Message| output("OUTPUT0").message(2, parameter("classification", value));
    let mut row = |name: &str, model: &str, (datatype, shape, raw): (&str, &[i64], &[u8]), value: Message| {
        table.call(name, INFER, one_raw(model, datatype, shape, raw).message(6, count(value)));
    };
    let int = |value: i64| Message::new().int(2, value);
    let fp32: (&str, &[i64], &[u8]) = ("FP32", &[1, 4], &values);
    row("count 1", "classify", fp32, int(1));
    row("count 2", "classify", fp32, int(2));
    row("count 100", "classify", fp32, int(100));
    row("count 0", "classify", fp32, int(0));
    row("count -1", "classify", fp32, int(-1));
    row("count as text", "classify", fp32, Message::new().bytes(3, "2"));
    row("count as bool", "classify", fp32, Message::new().int(1, 1));
    row("count unsigned", "classify", fp32, Message::new().int(5, 2));
    let integers: Vec<u8> = [10, -5, 7, 0].iter().flat_map(|value: &i32| value.to_le_bytes()).collect();
    row("without labels", "classify_int", ("INT32", &[1, 4], &integers), int(3));
    row("without batching", "classify_nobatch", ("FP32", &[4], &values), int(2));
    let rows = [values.as_slice(), &values].concat();
    row("two rows", "classify", ("FP32", &[2, 4], &rows), int(1));
    row("BOOL", "identity_bool", ("BOOL", &[1, 2], b"\x01\x00"), int(1));
    row("FP16", "identity_fp16", ("FP16", &[1, 2], b"\x00\x3c\x00\x40"), int(1));
    table.into_cases()
}

fn methods() -> Vec<Case> {
    let mut table = Table::new("grpc method");
    table.call("unknown", "/inference.GRPCInferenceService/Nope", Message::new());
    table.call("of an unknown service", "/inference.Nope/ModelInfer", Message::new());
    table.call("in other capitals", "/inference.GRPCInferenceService/modelinfer", Message::new());
    table.call("statistics of an unknown model", "/inference.GRPCInferenceService/ModelStatistics", named("nope", ""));
    table.call(
        "load of a model",
        "/inference.GRPCInferenceService/RepositoryModelLoad",
        Message::new().bytes(2, "slow"),
    );
    table.call("index of the repository", "/inference.GRPCInferenceService/RepositoryIndex", Message::new());
    table.call("status of shared memory", "/inference.GRPCInferenceService/SystemSharedMemoryStatus", Message::new());
    let broken = Message::new().bytes(1, "identity_fp32").and(Message::new().int(5, 1));
    table.call("a field of the wrong kind", INFER, broken);
    table.into_cases()
}
