//! Requests that are refused: each check of an inference, in the order in which they are made.

use crate::oracle::case::{Case, Table, one_input, one_input_to};

/// The cases of this group.
pub fn cases() -> Vec<Case> {
    [inputs(), fields(), shapes(), sizes(), sources(), order()].concat()
}

fn inputs() -> Vec<Case> {
    let mut table = Table::new("inputs");
    let mut row = |model: &str, inputs: &str| {
        table.infer(&format!("{model} {inputs}"), model, &format!(r#"{{"inputs":{inputs}}}"#));
    };
    for inputs in [
        "[]",
        "{}",
        "null",
        "1",
        "[1]",
        "[null]",
        "[{}]",
        r#"[{"name":"NOPE","datatype":"FP32","shape":[1,1],"data":[1]}]"#,
        r#"[{"name":"","datatype":"FP32","shape":[1,1],"data":[1]}]"#,
        r#"[{"name":"input0","datatype":"FP32","shape":[1,1],"data":[1]}]"#,
        r#"[{"name":"OUTPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]"#,
        r#"[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]},{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]"#,
        r#"[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]},{"name":"INPUT1","datatype":"FP32","shape":[1,1],"data":[1]}]"#,
    ] {
        row("identity_fp32", inputs);
    }
    for inputs in [
        "[]",
        r#"[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]"#,
        r#"[{"name":"INPUT1","datatype":"INT32","shape":[1,1],"data":[1]}]"#,
        r#"[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]},{"name":"NOPE","datatype":"INT32","shape":[1,1],"data":[1]}]"#,
        r#"[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]},{"name":"INPUT1","datatype":"INT32","shape":[1,1],"data":[1]},{"name":"X","datatype":"INT32","shape":[1,1],"data":[1]}]"#,
        r#"[{"name":"INPUT0","datatype":"FP32","shape":[2,1],"data":[1,2]},{"name":"INPUT1","datatype":"INT32","shape":[1,1],"data":[1]}]"#,
    ] {
        row("identity_two", inputs);
    }
    table.into_cases()
}

fn fields() -> Vec<Case> {
    let mut table = Table::new("field");
    let mut row = |input: &str| {
        table.infer(input, "identity_fp32", &format!(r#"{{"inputs":[{{{input}}}]}}"#));
    };
    for input in [
        r#""datatype":"FP32","shape":[1,1],"data":[1]"#,
        r#""name":1,"datatype":"FP32","shape":[1,1],"data":[1]"#,
        r#""name":null,"datatype":"FP32","shape":[1,1],"data":[1]"#,
        r#""name":"INPUT0","shape":[1,1],"data":[1]"#,
        r#""name":"INPUT0","datatype":1,"shape":[1,1],"data":[1]"#,
        r#""name":"INPUT0","datatype":"FP32","data":[1]"#,
        r#""name":"INPUT0","datatype":"FP32","shape":1,"data":[1]"#,
        r#""name":"INPUT0","datatype":"FP32","shape":{},"data":[1]"#,
        r#""name":"INPUT0","datatype":"FP32","shape":null,"data":[1]"#,
        r#""name":"INPUT0","datatype":"FP32","shape":["1","1"],"data":[1]"#,
        r#""name":"INPUT0","datatype":"FP32","shape":[1.0,1],"data":[1]"#,
        r#""name":"INPUT0","datatype":"FP32","shape":[-1,1],"data":[1]"#,
        r#""name":"INPUT0","datatype":"FP32","shape":[1,null],"data":[1]"#,
        r#""name":"INPUT0","datatype":"FP32","shape":[[1],1],"data":[1]"#,
        r#""name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[1]"#,
        r#""name":"INPUT0","datatype":"FP64","shape":[1,1],"data":[1]"#,
        r#""name":"INPUT0","datatype":"FP16","shape":[1,1],"data":[1]"#,
        r#""name":"INPUT0","datatype":"BYTES","shape":[1,1],"data":["1"]"#,
        r#""name":"INPUT0","datatype":"STRING","shape":[1,1],"data":["1"]"#,
        r#""name":"INPUT0","datatype":"fp32","shape":[1,1],"data":[1]"#,
        r#""name":"INPUT0","datatype":"FLOAT","shape":[1,1],"data":[1]"#,
        r#""name":"INPUT0","datatype":"","shape":[1,1],"data":[1]"#,
        r#""name":"INPUT0","datatype":"TYPE_FP32","shape":[1,1],"data":[1]"#,
    ] {
        row(input);
    }
    table.into_cases()
}

fn shapes() -> Vec<Case> {
    let mut table = Table::new("shape");
    let mut row = |model: &str, shape: &str, data: &str| {
        table.data(&format!("{model} {shape}"), model, ("FP32", shape), data);
    };
    row("identity_fp32", "[]", "[1]");
    row("identity_fp32", "[1]", "[1]");
    row("identity_fp32", "[1,1,1]", "[1]");
    row("identity_fp32", "[9,1]", "[1,2,3,4,5,6,7,8,9]");
    row("identity_fp32", "[0,1]", "[]");
    row("identity_raw", "[1,3]", "[1,2,3]");
    row("identity_raw", "[4]", "[1,2,3,4]");
    row("identity_raw", "[9,4]", &format!("[{}]", ["1"; 36].join(",")));
    row("identity_raw", "[0,4]", "[]");
    row("identity_raw", "[1,0]", "[]");
    row("identity_nobatch", "[3]", "[1,2,3]");
    row("identity_nobatch", "[1,4]", "[1,2,3,4]");
    row("identity_nobatch", "[]", "[1]");
    row("identity_square", "[1,2]", "[1,2]");
    row("identity_square", "[1,0,3]", "[]");
    let mut large = |name: &str, shape: &str| table.data(name, "identity_fp32", ("FP32", shape), "[1]");
    large("a dimension of 2^63", "[1,9223372036854775808]");
    large("a dimension of 2^64", "[1,18446744073709551616]");
    large("a product of 2^64", "[4294967296,4294967296]");
    large("a product of 2^63", "[2147483648,4294967296]");
    table.into_cases()
}

fn sizes() -> Vec<Case> {
    let mut table = Table::new("size");
    let mut row = |name: &str, data: &str| table.data(name, "identity_fp32", ("FP32", "[1,4]"), data);
    row("an element too few", "[1,2,3]");
    row("an element too many", "[1,2,3,4,5]");
    row("no elements for four", "[]");
    row("an element too many, nested", "[[1,2,3,4,5]]");
    table.data("a text too few", "identity_bytes", ("BYTES", "[1,2]"), r#"["a"]"#);
    table.data("a text too many", "identity_bytes", ("BYTES", "[1,2]"), r#"["a","b","c"]"#);
    table.data("a boolean too few", "identity_bool", ("BOOL", "[1,2]"), "[true]");
    table.data("an integer too many", "identity_int8", ("INT8", "[1,2]"), "[1,2,3]");
    table.into_cases()
}

fn sources() -> Vec<Case> {
    let mut table = Table::new("source");
    let mut row = |rest: &str| {
        table.infer(rest, "identity_fp32", &one_input("FP32", "[1,1]", rest));
    };
    row(r#""x":1"#);
    row(r#""parameters":{}"#);
    row(r#""data":[1],"parameters":{"binary_data_size":4}"#);
    row(r#""data":[1],"parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}"#);
    row(r#""parameters":{"binary_data_size":4,"shared_memory_region":"r","shared_memory_byte_size":4}"#);
    row(r#""parameters":{"binary_data_size":4}"#);
    row(r#""parameters":{"binary_data_size":0}"#);
    row(r#""parameters":{"binary_data_size":-4}"#);
    row(r#""parameters":{"binary_data_size":"4"}"#);
    row(r#""parameters":{"binary_data_size":4.0}"#);
    row(r#""parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}"#);
    row(r#""parameters":{"shared_memory_region":"r"}"#);
    row(r#""parameters":{"shared_memory_region":1}"#);
    table.into_cases()
}

/// Two faults at once: the one that is reported.
fn order() -> Vec<Case> {
    let mut table = Table::new("order");
    let data = r#""data":[1]"#;
    let mut row = |name: &str, model: &str, json: &str| table.infer(name, model, json);
    row("unknown model and bad JSON", "nope", "{");
    row(
        "unknown output and unknown input",
        "identity_fp32",
        r#"{"inputs":[{"name":"NOPE","datatype":"FP32","shape":[1,1],"data":[1]}],"outputs":[{"name":"NOPE"}]}"#,
    );
    row(
        "unknown output and wrong datatype",
        "identity_fp32",
        &one_input_to("INT32", "[1,1]", data, r#"[{"name":"NOPE"}]"#),
    );
    row("unknown output and wrong shape", "identity_fp32", &one_input_to("FP32", "[1]", data, r#"[{"name":"NOPE"}]"#));
    row("wrong datatype and wrong shape", "identity_fp32", &one_input("INT32", "[1]", data));
    row(
        "wrong datatype and too many rows",
        "identity_fp32",
        &one_input("INT32", "[9,1]", r#""data":[1,2,3,4,5,6,7,8,9]"#),
    );
    row("wrong shape and too many rows", "identity_raw", &one_input("FP32", "[9,1]", r#""data":[1,2,3,4,5,6,7,8,9]"#));
    row("bad id and bad inputs", "identity_fp32", r#"{"id":1,"inputs":1}"#);
    row("bad parameters and bad inputs", "identity_fp32", r#"{"parameters":1,"inputs":1}"#);
    row("bad outputs and bad inputs", "identity_fp32", r#"{"outputs":1,"inputs":1}"#);
    row(
        "bad outputs and an unknown input",
        "identity_fp32",
        r#"{"inputs":[{"name":"NOPE","datatype":"FP32","shape":[1,1],"data":[1]}],"outputs":1}"#,
    );
    row("bad name and bad shape", "identity_fp32", r#"{"inputs":[{"name":1,"datatype":1,"shape":1,"data":1}]}"#);
    row(
        "bad datatype and bad shape",
        "identity_fp32",
        r#"{"inputs":[{"name":"INPUT0","datatype":1,"shape":1,"data":1}]}"#,
    );
    row(
        "bad shape and bad data",
        "identity_fp32",
        r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":1,"data":1}]}"#,
    );
    row(
        "bad data and bad parameters",
        "identity_fp32",
        r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":1,"parameters":1}]}"#,
    );
    row(
        "a bad second input after a bad first one",
        "identity_two",
        r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[1]},{"name":"INPUT1","datatype":"INT32","shape":"x","data":[1]}]}"#,
    );
    table.into_cases()
}
