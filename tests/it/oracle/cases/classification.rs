//! The classification extension over HTTP.

use crate::oracle::case::{Case, Table, one_input, one_input_to};

/// The cases of this group.
pub fn cases() -> Vec<Case> {
    let mut table = Table::new("classification");
    let of = |count: &str| format!(r#"[{{"name":"OUTPUT0","parameters":{{"classification":{count}}}}}]"#);
    let row = r#""data":[1.125,3.5,0.5,2.25]"#;
    for count in ["1", "2", "4", "5", "100", "0", "-1", "1.5", "\"a\"", "true", "null", "[]", "4294967296"] {
        table.infer(&format!("count {count}"), "classify", &one_input_to("FP32", "[1,4]", row, &of(count)));
    }
    let mut data = |name: &str, model: &str, (datatype, shape): (&str, &str), data: &str, count: &str| {
        let json = one_input_to(datatype, shape, &format!(r#""data":{data}"#), &of(count));
        table.infer(name, model, &json);
    };
    data("two rows", "classify", ("FP32", "[2,4]"), "[1,2,3,4,8,7,6,5]", "2");
    data("without batching", "classify_nobatch", ("FP32", "[4]"), "[1,2,3,4]", "3");
    data("without labels", "classify_int", ("INT32", "[1,4]"), "[10,-5,7,0]", "3");
    data("integers of two rows", "classify_int", ("INT32", "[2,4]"), "[1,2,3,4,-1,-2,-3,-4]", "4");
    data("equal values", "classify", ("FP32", "[1,4]"), "[1,1,1,1]", "4");
    data("fractions", "classify", ("FP32", "[1,4]"), "[0.1,0.25,0.3,1e-9]", "4");
    data("large values", "classify", ("FP32", "[1,4]"), "[1e30,-1e30,16777216,123456789]", "4");
    data("infinities", "classify", ("FP32", "[1,4]"), "[Infinity,-Infinity,0,-0.0]", "4");
    data("FP64", "identity_fp64", ("FP64", "[1,3]"), "[0.1,0.3,0.2]", "2");
    for datatype in ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"] {
        let model = format!("identity_{}", datatype.to_lowercase());
        data(datatype, &model, (datatype, "[1,4]"), "[3,100,20,0]", "2");
    }
    data("a large INT64", "identity_int64", ("INT64", "[1,2]"), "[9223372036854775806,9223372036854775807]", "2");
    data("a large UINT64", "identity_uint64", ("UINT64", "[1,2]"), "[9223372036854775808,18446744073709551615]", "2");
    data("BOOL", "identity_bool", ("BOOL", "[1,2]"), "[true,false]", "1");
    data("two dimensions of classes", "identity_square", ("FP32", "[2,2,2]"), "[1,2,3,4,5,6,7,8]", "3");
    parts(&mut table, row);
    table.into_cases()
}

/// Classification together with binary data, with another output, and in the wrong place.
fn parts(table: &mut Table, row: &str) {
    let both = r#"[{"name":"OUTPUT0","parameters":{"classification":2,"binary_data":true}}]"#;
    table.infer("as binary data", "classify", &one_input_to("FP32", "[1,4]", row, both));
    table.infer(
        "two rows as binary data",
        "classify",
        &one_input_to("FP32", "[2,4]", r#""data":[1,2,3,4,8,7,6,5]"#, both),
    );
    let input = one_input_to(
        "FP32",
        "[1,4]",
        r#""parameters":{"binary_data_size":16}"#,
        r#"[{"name":"OUTPUT0","parameters":{"classification":1}}]"#,
    );
    table.binary("of binary data", "classify", &input, &[1.0f32, 2.0, 4.0, 3.0].map(f32::to_le_bytes).concat());
    let half = one_input_to(
        "FP16",
        "[1,2]",
        r#""parameters":{"binary_data_size":4}"#,
        r#"[{"name":"OUTPUT0","parameters":{"classification":1}}]"#,
    );
    table.binary("FP16", "identity_fp16", &half, b"\x00\x3c\x00\x40");
    let half = one_input_to(
        "BF16",
        "[1,2]",
        r#""parameters":{"binary_data_size":4}"#,
        r#"[{"name":"OUTPUT0","parameters":{"classification":1}}]"#,
    );
    table.binary("BF16", "identity_bf16", &half, b"\x80\x3f\x00\x40");
    let two = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]},{"name":"INPUT1","datatype":"INT32","shape":[1,2],"data":[4,3]}],"outputs":[{"name":"OUTPUT1","parameters":{"classification":1}},{"name":"OUTPUT0"}]}"#;
    table.infer("of one output of two", "identity_two", two);
    let request = one_input("FP32", "[1,4]", row).replacen('{', r#"{"parameters":{"classification":2},"#, 1);
    table.infer("on the request", "classify", &request);
    let region = r#"[{"name":"OUTPUT0","parameters":{"classification":2,"shared_memory_region":"r","shared_memory_byte_size":16}}]"#;
    table.infer("with shared memory", "classify", &one_input_to("FP32", "[1,4]", row, region));
}
