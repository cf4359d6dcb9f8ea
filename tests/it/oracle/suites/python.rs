//! Python models: the same `model.py` files on both servers, after the patterns of public repositories and for each
//! rule of the contract. They are in `tests/python_models`, one folder each.
//!
//! Some things are never asked here, because they end tritonserver 2.51 or a stub of it, or are not the same twice:
//! metrics that refuse a value, arrays of numpy by DLPack, a response sender of a request that a model made, an answer
//! or an exception behind a response that was sent, eight calls of other models at once. `tests/it/python_models` has
//! those on Deuteron alone.

use std::{fs, path::Path};

use crate::{
    oracle::{
        case::{Case, Table},
        compare::{Becomes, Difference, On},
        suites::Suite,
    },
    support::{
        protobuf::Message,
        python::Environment,
        repository::{self, Flavour},
    },
};

/// The suite.
pub const SUITE: Suite = Suite { name: "python", flags: &[], own_flags, cases, differences: DIFFERENCES, write };

/// Models that need a library that is not installed, explicit control, a configuration that is completed, or the module
/// of a later Triton.
const ELSEWHERE: &[&str] = &["auto_complete", "model_control", "ready_states", "sklearn_classifier", "torch_mlp"];

/// Deuteron runs them in the environment of the models.
pub fn own_flags() -> Option<Vec<String>> {
    let python = Environment::of_models()?.python();
    Some(vec![format!("--backend-config=python,interpreter={}", python.display())])
}

/// Folder of the models.
pub fn models() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_models")
}

fn write(_: Flavour, repository: &Path) {
    for entry in fs::read_dir(models()).expect("the models are in the repository") {
        let entry = entry.expect("a folder can be read");
        let name = entry.file_name();
        if entry.path().is_dir() && ELSEWHERE.iter().all(|other| name != *other) {
            repository::copy(&entry.path(), &repository.join(name)).expect("the folder is ours");
        }
    }
}

/// A tensor of a request: name, datatype, shape, data.
type Input = [&'static str; 4];

/// Inferences over HTTP: model, subject, inputs, and further members of the JSON.
const INFERENCES: &[(&str, &str, &[Input], &str)] = &[
    (
        "wordpiece_tokenizer",
        "two",
        &[["text", "BYTES", "[2,1]", r#"["The quick fox jumps over","CAFÉ xyz 東京"]"#]],
        "",
    ),
    ("wordpiece_tokenizer", "nothing to say", &[["text", "BYTES", "[1,1]", r#"[""]"#]], ""),
    (
        "wordpiece_tokenizer",
        "a long one",
        &[["text", "BYTES", "[1,1]", r#"["a the the the the the the the the the the the"]"#]],
        "",
    ),
    ("hf_tokenizer", "two", &[["TEXT", "BYTES", "[2,1]", r#"["A photo of cats","two dogs"]"#]], ""),
    (
        "nms",
        "four boxes",
        &[
            ["boxes", "FP32", "[4,4]", "[0,0,2,2,0,0,2,1.75,4,4,5,5,0,0,1,1]"],
            ["scores", "FP32", "[4]", "[0.5,0.75,0.25,0.125]"],
        ],
        "",
    ),
    ("nms", "no boxes", &[["boxes", "FP32", "[0,4]", "[]"], ["scores", "FP32", "[0]", "[]"]], ""),
    (
        "feature_lookup",
        "known and unknown",
        &[
            ["user_id", "INT64", "[3,1]", "[1,9007199254740993,9007199254740992]"],
            ["item", "BYTES", "[3,1]", r#"["tea","coffee","milk"]"#],
        ],
        "",
    ),
    ("label_postprocess", "two rows", &[["logits", "FP32", "[2,4]", "[0.5,2,1,3.5,1,1,1,1]"]], ""),
    ("text_normalise", "three", &[["INPUT_TEXT", "BYTES", "[3]", r#"["  Ｈｅｌｌｏ, World 42! ","","it's ﬁne"]"#]], ""),
    ("text_normalise", "none", &[["INPUT_TEXT", "BYTES", "[0]", "[]"]], ""),
    (
        "audio_framing",
        "frames",
        &[["WAV", "FP32", "[8]", "[0,0.5,1,1.5,2,2.5,3,99]"], ["WAV_LENS", "INT32", "[1]", "[7]"]],
        r#","parameters":{"binary_data_output":true}"#,
    ),
    (
        "audio_framing",
        "half precision as JSON",
        &[["WAV", "FP32", "[4]", "[0,0.5,1,1.5]"], ["WAV_LENS", "INT32", "[1]", "[4]"]],
        "",
    ),
    ("audio_framing", "too short", &[["WAV", "FP32", "[3]", "[0,0.5,1]"], ["WAV_LENS", "INT32", "[1]", "[3]"]], ""),
    ("batch_concat", "three rows", &[["x", "FP32", "[3,2]", "[1,2,3,4,5,6]"]], ""),
    ("bls_pipeline", "well", &[["x", "INT32", "[3]", "[1,2,3]"], ["model", "BYTES", "[1]", r#"["double"]"#]], ""),
    ("bls_pipeline", "unknown", &[["x", "INT32", "[1]", "[1]"], ["model", "BYTES", "[1]", r#"["nope"]"#]], ""),
    ("bls_pipeline", "refused", &[["x", "INT32", "[1]", "[13]"], ["model", "BYTES", "[1]", r#"["double"]"#]], ""),
    ("bls_pipeline", "failed", &[["x", "INT32", "[1]", "[666]"], ["model", "BYTES", "[1]", r#"["double"]"#]], ""),
    ("chain_first", "three models", &[["x", "INT32", "[2]", "[1,2]"]], r#","id":"c""#),
    ("chain_first", "refused by the last", &[["x", "INT32", "[1]", "[13]"]], ""),
    (
        "bls_async",
        "two at once",
        &[["x", "INT32", "[2]", "[1,2]"], ["delay_ms", "INT32", "[1]", "[10]"]],
        r#","outputs":[{"name":"y"}]"#,
    ),
    ("async_execute", "once", &[["x", "INT32", "[1]", "[5]"]], ""),
    ("async_execute", "again, on the same loop", &[["x", "INT32", "[1]", "[5]"]], ""),
    ("async_execute", "raises", &[["x", "INT32", "[1]", "[-5]"]], ""),
    (
        "session_memory",
        "^5",
        &[["INPUT", "INT32", "[1,1]", "[5]"]],
        r#","parameters":{"sequence_id":5,"sequence_start":true}"#,
    ),
    (
        "session_memory",
        "^6",
        &[["INPUT", "INT32", "[1,1]", "[60]"]],
        r#","parameters":{"sequence_id":6,"sequence_start":true}"#,
    ),
    ("session_memory", "5", &[["INPUT", "INT32", "[1,1]", "[6]"]], r#","parameters":{"sequence_id":5}"#),
    (
        "session_memory",
        "5$",
        &[["INPUT", "INT32", "[1,1]", "[7]"]],
        r#","parameters":{"sequence_id":5,"sequence_end":true}"#,
    ),
    (
        "session_memory",
        "6$",
        &[["INPUT", "INT32", "[1,1]", "[61]"]],
        r#","parameters":{"sequence_id":6,"sequence_end":true}"#,
    ),
    ("reschedule", "three times", &[["INPUT", "INT32", "[1,1]", "[3]"]], ""),
    ("optional_inputs", "one", &[["text", "BYTES", "[1]", r#"["hi"]"#]], ""),
    ("optional_inputs", "two", &[["stop", "BOOL", "[1]", "[true]"], ["text", "BYTES", "[1]", r#"["hi"]"#]], ""),
    (
        "optional_inputs",
        "three",
        &[
            ["text", "BYTES", "[1]", r#"["hi"]"#],
            ["temperature", "FP32", "[1]", "[0.5]"],
            ["stop", "BOOL", "[1]", "[false]"],
        ],
        "",
    ),
    ("string_forms", "three", &[["text", "BYTES", "[3]", r#"["hi","","café"]"#]], ""),
    ("string_forms", "none", &[["text", "BYTES", "[0]", "[]"]], ""),
    ("layouts", "two by three", &[["matrix", "INT32", "[2,3]", "[1,2,3,4,5,6]"]], ""),
    (
        "all_types",
        "by JSON",
        &[
            ["IN_BOOL", "BOOL", "[2]", "[true,false]"],
            ["IN_INT8", "INT8", "[2]", "[-128,127]"],
            ["IN_INT16", "INT16", "[2]", "[-32768,32767]"],
            ["IN_INT32", "INT32", "[1]", "[-2147483648]"],
            ["IN_INT64", "INT64", "[1]", "[-9223372036854775808]"],
            ["IN_UINT8", "UINT8", "[1]", "[255]"],
            ["IN_UINT16", "UINT16", "[1]", "[65535]"],
            ["IN_UINT32", "UINT32", "[1]", "[4294967295]"],
            ["IN_UINT64", "UINT64", "[1]", "[18446744073709551615]"],
            ["IN_FP32", "FP32", "[2]", "[0.5,-1.25]"],
            ["IN_FP64", "FP64", "[1]", "[0.1]"],
        ],
        "",
    ),
    ("pruned_outputs", "none asked", &[["x", "FP32", "[2]", "[3,1]"]], ""),
    ("pruned_outputs", "one asked", &[["x", "FP32", "[2]", "[3,1]"]], r#","outputs":[{"name":"difference"}]"#),
    (
        "pruned_outputs",
        "two asked",
        &[["x", "FP32", "[2]", "[3,1]"]],
        r#","outputs":[{"name":"sum"},{"name":"asked"}]"#,
    ),
    (
        "request_echo",
        "parameters",
        &[["x", "INT32", "[2]", "[3,1]"]],
        r#","id":"r7","parameters":{"a":1,"b":"two","c":true,"n":-9007199254740993,"timeout":1000,"priority":3}"#,
    ),
    (
        "request_echo",
        "a sequence begins",
        &[["x", "INT32", "[2]", "[3,1]"]],
        r#","parameters":{"sequence_id":9,"sequence_start":true,"d":1.5}"#,
    ),
    (
        "request_echo",
        "a sequence by name ends",
        &[["x", "INT32", "[0]", "[]"]],
        r#","parameters":{"sequence_id":"abc","sequence_end":true}"#,
    ),
    ("request_echo", "nothing said", &[["x", "INT32", "[1]", "[3]"]], ""),
    ("init_args", "the arguments", &[["x", "INT32", "[1]", "[3]"]], r#","outputs":[{"name":"args"}]"#),
    ("init_args", "the process", &[["x", "INT32", "[1]", "[3]"]], r#","outputs":[{"name":"process"}]"#),
    ("init_args", "the configuration", &[["x", "INT32", "[1]", "[3]"]], r#","outputs":[{"name":"model_config"}]"#),
    ("relative_import", "well", &[["x", "FP32", "[2]", "[3,1]"]], ""),
    ("cancel_watch", "nobody cancels", &[["limit_ms", "INT32", "[1]", "[0]"]], ""),
    (
        "custom_metrics",
        "increment",
        &[["case", "BYTES", "[1]", r#"["increment"]"#], ["value", "FP64", "[1]", "[2]"]],
        "",
    ),
    (
        "custom_metrics",
        "increment again",
        &[["case", "BYTES", "[1]", r#"["increment"]"#], ["value", "FP64", "[1]", "[0.5]"]],
        "",
    ),
    ("custom_metrics", "set", &[["case", "BYTES", "[1]", r#"["set_gauge"]"#], ["value", "FP64", "[1]", "[-3]"]], ""),
    ("custom_metrics", "lower", &[["case", "BYTES", "[1]", r#"["lower_gauge"]"#], ["value", "FP64", "[1]", "[1]"]], ""),
    (
        "custom_metrics",
        "the same labels",
        &[["case", "BYTES", "[1]", r#"["same_labels_share_a_value"]"#], ["value", "FP64", "[1]", "[1]"]],
        "",
    ),
    (
        "custom_metrics",
        "the same family",
        &[["case", "BYTES", "[1]", r#"["same_family_twice"]"#], ["value", "FP64", "[1]", "[1]"]],
        "",
    ),
    (
        "custom_metrics",
        "after its family",
        &[["case", "BYTES", "[1]", r#"["metric_after_its_family"]"#], ["value", "FP64", "[1]", "[1]"]],
        "",
    ),
];

/// Models that are asked for a case by its name, with the cases.
const BY_NAME: &[(&str, &str)] = &[
    (
        "raises",
        "nothing value_error no_message key_error own_error model_exception unicode_message several_lines system_exit \
         keyboard_interrupt generator_exit chained deep syntax_error assertion stop_iteration unknown",
    ),
    (
        "wrong_returns",
        "right empty_list two_for_one none_too_many a_tuple a_dict a_number a_response a_subclass_of_list \
         a_string_in_a_list a_tensor_in_a_list an_error_in_a_list no_outputs default_response another_name \
         another_name_too the_same_name_twice another_datatype another_shape a_scalar an_error_and_outputs",
    ),
    ("logger", "levels thread hostile"),
    (
        "response_sender",
        "at_once none_in_a_list response_then_end later error two_responses last end_first after_the_end last end_twice \
         last unknown_flag nothing_sent no_response two_senders last is_cancelled pruned wrong_tensors raises_before",
    ),
    (
        "bls",
        "from_initialize one_output both_outputs no_outputs_asked a_version positional_names from_a_thread two_async \
         unknown_model unknown_version unknown_input missing_input unknown_output wrong_datatype wrong_shape refused raised \
         error_has_no_outputs no_error tensors_live_on large the_same_request_twice request_is_seen \
         a_text_as_correlation_id batches_of_a_model strings decoupled_without_asking decoupled decoupled_none \
         decoupled_error decoupled_twice decoupled_with_next decoupled_is_an_iterator decoupled_dropped \
         decoupled_on_an_ordinary_model decoupled_unknown_model decoupled_two_async codes",
    ),
    ("utils_functions", "types strings by_name configs constants"),
    ("argument_validation", "tensors dlpack responses errors requests logs metrics sender"),
];

/// Cases of `response_sender_decoupled`, each on a stream of its own.
const STREAMS: &str = "none_at_all one_with_the_end three three_from_a_thread an_error_between after_the_end last end_twice \
    last unknown_flag nothing_sent is_cancelled returns_a_list last raises raises_and_sends sends_after_it_raised";

fn cases() -> Vec<Case> {
    let mut table = Table::new("python");
    let mut seen = Vec::new();
    for (model, what, inputs, more) in INFERENCES {
        let json = json(inputs, more);
        table.infer(&format!("{model}, {what}"), model, &json);
    }
    for (model, names) in BY_NAME {
        for name in names.split_whitespace() {
            // A request for a value that an earlier one stored comes several times.
            let times = seen.iter().filter(|before| **before == (*model, name)).count();
            let again = if times == 0 { String::new() } else { format!(" {}", times + 1) };
            let text = format!("[\"{name}\"]");
            table.infer(&format!("{model}, {name}{again}"), model, &one("case", "BYTES", "[1]", &text, ""));
            seen.push((*model, name));
        }
    }
    over_grpc(&mut table);
    over_streams(&mut table);
    // Requests that Triton never answers come last: afterwards its instances are not as before.
    for name in ["nothing", "nothing_in_a_list"] {
        let text = format!("[\"{name}\"]");
        table.infer(&format!("wrong_returns, {name}"), "wrong_returns", &one("case", "BYTES", "[1]", &text, ""));
    }
    table.into_cases()
}

fn json(inputs: &[Input], more: &str) -> String {
    let inputs = inputs.iter().map(|[name, datatype, shape, data]| tensor(name, datatype, shape, data));
    format!("{{\"inputs\":[{}]{more}}}", inputs.collect::<Vec<_>>().join(","))
}

/// A request with one input.
pub fn one(name: &str, datatype: &str, shape: &str, data: &str, more: &str) -> String {
    format!("{{\"inputs\":[{}]{more}}}", tensor(name, datatype, shape, data))
}

fn tensor(name: &str, datatype: &str, shape: &str, data: &str) -> String {
    format!(r#"{{"name":"{name}","datatype":"{datatype}","shape":{shape},"data":{data}}}"#)
}

/// A request as a message: inputs by name, datatype, shape and bytes.
pub fn message(model: &str, inputs: &[(&str, &str, &[i64], Vec<u8>)]) -> Message {
    let mut message = Message::new().bytes(1, model);
    for (name, datatype, shape, _) in inputs {
        message = message.message(5, Message::new().bytes(1, name).bytes(2, datatype).packed(3, shape));
    }
    inputs.iter().fold(message, |message, (.., bytes)| message.bytes(7, bytes))
}

/// Strings as the bytes of a tensor.
pub fn strings(texts: &[&[u8]]) -> Vec<u8> {
    let size = |text: &[u8]| u32::try_from(text.len()).expect("a short text").to_le_bytes();
    texts.iter().flat_map(|text| [size(text).as_slice(), text].concat()).collect()
}

fn over_grpc(table: &mut Table) {
    const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
    const PICTURE: &[u8] = include_bytes!("../../../oracle/picture.png");
    for code in -2..8_i32 {
        let input = ("code", "INT32", [1, 1].as_slice(), code.to_le_bytes().to_vec());
        table.infer(
            &format!("error_codes, {code}"),
            "error_codes",
            &one("code", "INT32", "[1,1]", &format!("[{code}]"), ""),
        );
        table.call(&format!("error_codes by gRPC, {code}"), INFER, message("error_codes", &[input]));
    }
    let halves = [0x00, 0x3c, 0xff, 0x7b, 0x00, 0xfc, 0x01, 0x7e];
    let inputs =
        [("IN_FP16", "FP16", [4].as_slice(), halves.to_vec()), ("IN_BF16", "BF16", &[2], vec![0x80, 0x3f, 0xc0, 0x7f])];
    table.call("all_types by gRPC, halves", INFER, message("all_types", &inputs));
    let odd = ("text", "BYTES", [4].as_slice(), strings(&[b"\xff\xfe", b"", b"nul \0", "東京".as_bytes()]));
    table.call("string_forms by gRPC, bytes that are no text", INFER, message("string_forms", &[odd]));
    let size = i64::try_from(PICTURE.len()).expect("a small picture");
    let picture =
        |bytes: &[u8], size| message("image_decode_pil", &[("INPUT", "UINT8", [size].as_slice(), bytes.to_vec())]);
    table.call("image_decode_pil by gRPC, a picture", INFER, picture(PICTURE, size));
    table.call("image_decode_pil by gRPC, no picture", INFER, picture(b"GIF89", 5));
    let pictures = |texts: &[&[u8]]| {
        let rows = i64::try_from(texts.len()).expect("few");
        message("image_decode_cv2", &[("raw_image", "BYTES", [rows, 1].as_slice(), strings(texts))])
    };
    table.call("image_decode_cv2 by gRPC, two pictures", INFER, pictures(&[PICTURE, PICTURE]));
    table.call("image_decode_cv2 by gRPC, no picture", INFER, pictures(&[b"GIF89"]));
    let case =
        |model: &str, name: &str| message(model, &[("case", "BYTES", [1].as_slice(), strings(&[name.as_bytes()]))]);
    table.call("raises by gRPC, value_error", INFER, case("raises", "value_error"));
    table.call("wrong_returns by gRPC, a_tuple", INFER, case("wrong_returns", "a_tuple"));
    table.call("response_sender by gRPC, error", INFER, case("response_sender", "error"));
    table.call("token_stream by gRPC, not streamed", INFER, message("token_stream", &[prompt("one two")]));
    let json = one("PROMPT", "BYTES", "[1]", r#"["one two"]"#, "");
    table.infer("token_stream, over HTTP", "token_stream", &json);
}

fn prompt(text: &str) -> (&'static str, &'static str, &'static [i64], Vec<u8>) {
    ("PROMPT", "BYTES", &[1], strings(&[text.as_bytes()]))
}

fn over_streams(table: &mut Table) {
    let with_end = |message: Message| {
        let yes = Message::new().int(1, 1);
        message.bytes(3, "s").message(4, Message::new().bytes(1, "triton_enable_empty_final_response").message(2, yes))
    };
    let mut seen = Vec::new();
    for name in STREAMS.split_whitespace() {
        let times = seen.iter().filter(|before| **before == name).count();
        let again = if times == 0 { String::new() } else { format!(" {}", times + 1) };
        let inputs = [("case", "BYTES", [1].as_slice(), strings(&[name.as_bytes()]))];
        let asked = with_end(message("response_sender_decoupled", &inputs));
        table.stream(&format!("response_sender_decoupled, {name}{again}"), asked);
        seen.push(name);
    }
    let ints =
        |name, values: &[i32]| (name, "INT32", values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
    for (what, max_tokens) in
        [("three words", None), ("two of three", Some(2)), ("none", Some(0)), ("an error", Some(-1))]
    {
        let mut inputs = vec![prompt("one two three")];
        inputs
            .extend(max_tokens.map(|count: i32| ("MAX_TOKENS", "INT32", [1].as_slice(), count.to_le_bytes().to_vec())));
        table.stream(&format!("token_stream, {what}"), with_end(message("token_stream", &inputs)));
    }
    table.stream("token_stream, without the end", message("token_stream", &[prompt("one two")]));
    for (what, delays) in [("two", [1, 2].as_slice()), ("wrong shapes", &[1])] {
        let (input, delay) = (ints("IN", &[4, 5]), ints("DELAY", delays));
        let shape = [i64::try_from(delays.len()).expect("few")];
        let inputs = [
            (input.0, input.1, [2].as_slice(), input.2),
            (delay.0, "UINT32", shape.as_slice(), delay.2),
            ("WAIT", "UINT32", &[1], vec![0; 4]),
        ];
        table.stream(&format!("late_answers, {what}"), with_end(message("late_answers", &inputs)));
    }
    let x = ("x", "INT32", [1].as_slice(), vec![2, 0, 0, 0]);
    table.stream("double, an ordinary model on a stream", message("double", &[x]));
    let x = ("x", "INT32", [1].as_slice(), vec![13, 0, 0, 0]);
    table.stream("double, an ordinary model that refuses on a stream", message("double", &[x]));
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        decision: "an error's body is JSON, and its type says so",
        on: On::Every(|_, answer| answer.contains(" text/plain\n{\"error\":")),
        becomes: Becomes::Replaced("text/plain", "application/json"),
    },
    Difference {
        decision: "a request that nobody can answer any more fails; Triton leaves its client waiting for ever",
        on: On::Cases(&["python: wrong_returns, nothing", "python: wrong_returns, nothing_in_a_list"]),
        becomes: Becomes::Answer(
            "500 application/json\n{\"error\":\"Failed to process the request(s) for model 'wrong_returns_0_0', message: \
             the model gave no response: execute returned None for the request, and no response sender is left that could \
             send one\"}",
        ),
    },
    Difference {
        decision: "the code of a model that was called is told, as later Tritons do; in 2.51 it is always INTERNAL",
        on: On::Cases(&["python: bls, codes"]),
        becomes: Becomes::Replaced("\"False\"", "\"True\""),
    },
    Difference {
        decision: "a model that passes on the error of one that it called passes on its code",
        on: On::Cases(&["python: chain_first, refused by the last"]),
        becomes: Becomes::Replaced("500 application/json", "400 application/json"),
    },
    Difference {
        decision: "outputs are in the order of the configuration; Triton has them as the model returned them",
        on: On::Cases(&[
            "python: all_types, by JSON",
            "python: pruned_outputs, none asked",
            "python: pruned_outputs, two asked",
        ]),
        becomes: Becomes::Rewritten(in_order),
    },
    Difference {
        decision: "outputs of a stream are in the order of the configuration too",
        on: On::Cases(&["python: late_answers, two"]),
        becomes: Becomes::Rewritten(swapped),
    },
    Difference {
        decision: "an output is sent once, also where the model returns it twice",
        on: On::Cases(&["python: wrong_returns, the_same_name_twice"]),
        becomes: Becomes::Answer(
            "200 application/json\n{\"model_name\":\"wrong_returns\",\"model_version\":\"1\",\"outputs\":[{\"name\":\
             \"result\",\"datatype\":\"BYTES\",\"shape\":[1],\"data\":[\"fine\"]}]}",
        ),
    },
    Difference {
        decision: "an output of another datatype than declared is the model's fault; Triton passes it on",
        on: On::Cases(&["python: wrong_returns, another_datatype"]),
        becomes: Becomes::Answer(
            "500 application/json\n{\"error\":\"output 'result' of model 'wrong_returns' must be BYTES but came as FP64\"}",
        ),
    },
    Difference {
        decision: "an output of another shape than declared is the model's fault; Triton passes it on",
        on: On::Cases(&["python: wrong_returns, another_shape"]),
        becomes: Becomes::Answer(
            "500 application/json\n{\"error\":\"output 'result' of model 'wrong_returns' must have shape [-1] but came \
             with [1,2,1]\"}",
        ),
    },
    Difference {
        decision: "an output of another datatype than declared is the model's fault from a sender too",
        on: On::Cases(&["python: response_sender, wrong_tensors"]),
        becomes: Becomes::Answer(
            "500 application/json\n{\"error\":\"output 'result' of model 'response_sender' must be BYTES but came as FP64\"}",
        ),
    },
    Difference {
        decision: "an output with a dimension more than declared is the model's fault; Triton passes it on",
        on: On::Cases(&["python: bls, tensors_live_on"]),
        becomes: Becomes::Answer(
            "500 application/json\n{\"error\":\"output 'result' of model 'bls' must have shape [-1] but came with [20,1]\"}",
        ),
    },
    Difference {
        decision: "a scalar has another shape than a declared list of any length; Triton passes it on",
        on: On::Cases(&["python: wrong_returns, a_scalar"]),
        becomes: Becomes::Answer(
            "500 application/json\n{\"error\":\"output 'result' of model 'wrong_returns' must have shape [-1] but came \
             with []\"}",
        ),
    },
    Difference {
        decision: "the end of a stream's responses names the version as the others do",
        on: On::Every(|_, answer| answer.contains("message\n2 {\n")),
        becomes: Becomes::Rewritten(with_version),
    },
    Difference {
        decision: "numpy 2 has another name for the type of booleans",
        on: On::Cases(&["python: utils_functions, types"]),
        becomes: Becomes::Replaced("numpy.bool_", "numpy.bool"),
    },
    Difference {
        decision: "BYTES that are cut off are refused as by later Tritons, in words",
        on: On::Cases(&["python: utils_functions, strings"]),
        becomes: Becomes::Replaced("cut off: error", "cut off: TritonModelException"),
    },
    Difference {
        decision: "classes are those of Python, which say their own names only",
        on: On::Cases(&["python: argument_validation, tensors", "python: argument_validation, requests"]),
        becomes: Becomes::Replaced("'c_python_backend_utils.", "'"),
    },
    Difference {
        decision: "a correlation id out of range is the caller's mistake and no failure of a cast",
        on: On::Cases(&["python: argument_validation, requests"]),
        becomes: Becomes::Replaced(
            "RuntimeError: Unable to cast Python instance to C++ type (#define PYBIND11_DETAILED_ERROR_MESSAGES or \
             compile in debug mode for details)",
            "TypeError",
        ),
    },
];

/// The outputs of a JSON answer in the order of their model's configuration.
fn in_order(answer: &str) -> String {
    const ORDER: &[&str] =
        &["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64", "BYTES"];
    let Some((head, outputs)) = answer.split_once("\"outputs\":[{") else { return answer.to_owned() };
    let Some(outputs) = outputs.strip_suffix("}]}") else { return answer.to_owned() };
    let mut outputs: Vec<&str> = outputs.split("},{").collect();
    let is_of_types = outputs.iter().any(|output| output.contains("\"OUT_"));
    if is_of_types {
        let place = |output: &&str| ORDER.iter().position(|kind| output.contains(&format!("\"OUT_{kind}\"")));
        outputs.sort_by_key(place);
    } else {
        // sum, difference, asked
        outputs.sort_by(|one, other| other.cmp(one));
    }
    format!("{head}\"outputs\":[{{{}}}]}}", outputs.join("},{"))
}

/// The two outputs of each message, in the other order.
fn swapped(answer: &str) -> String {
    let (idx, out) = (
        "  5 {\n    1: \"IDX\"\n    2: \"UINT32\"\n    3: bytes \"\\x01\"\n  }\n",
        "  5 {\n    1: \"OUT\"\n    2: \"INT32\"\n    3: bytes \"\\x01\"\n  }\n",
    );
    let contents = |number: u8| format!("  6: bytes \"\\x0{number}\\x00\\x00\\x00\"\n");
    let mut swapped = answer.replace(&format!("{idx}{out}"), &format!("{out}{idx}"));
    for (index, value) in [(0, 4), (1, 5)] {
        let (index, value) = (contents(index), contents(value));
        swapped = swapped.replace(&format!("{index}{value}"), &format!("{value}{index}"));
    }
    swapped
}

/// Adds the version to each message that is not an error.
fn with_version(answer: &str) -> String {
    let lines: Vec<&str> = answer.lines().collect();
    let mut out = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        out.push(*line);
        let before = index.checked_sub(2).and_then(|at| lines.get(at..index));
        let next = lines.get(index + 1).copied().unwrap_or_default();
        if before == Some(&["message", "2 {"][..]) && line.starts_with("  1: ") && !next.starts_with("  2: ") {
            out.push("  2: \"1\"");
        }
    }
    out.join("\n")
}
