//! The binary tensor data extension, raw binary requests, and the header that tells JSON from tensors.

use crate::oracle::case::{Case, Table, one_input, one_input_to};

/// The cases of this group.
pub fn cases() -> Vec<Case> {
    [datatypes(), mixed(), sizes(), texts(), header_length(), raw()].concat()
}

const OUT: &str = r#"[{"name":"OUTPUT0","parameters":{"binary_data":true}}]"#;

fn sized(size: usize) -> String {
    format!(r#""parameters":{{"binary_data_size":{size}}}"#)
}

fn datatypes() -> Vec<Case> {
    let mut table = Table::new("binary");
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
        let to_binary = one_input_to(datatype, "[1,2]", &sized(bytes.len()), OUT);
        table.binary(&format!("{datatype} in and out"), &model, &to_binary, bytes);
        let to_json = one_input(datatype, "[1,2]", &sized(bytes.len()));
        table.binary(&format!("{datatype} in, JSON out"), &model, &to_json, bytes);
    }
    let out = one_input_to("FP32", "[1,2]", r#""data":[1,2]"#, OUT);
    table.infer("JSON in, binary out", "identity_fp32", &out);
    table.infer("no elements out", "identity_fp32", &one_input_to("FP32", "[1,0]", r#""data":[]"#, OUT));
    table.binary("no elements in and out", "identity_fp32", &one_input_to("FP32", "[1,0]", &sized(0), OUT), b"");
    table.binary("an odd BOOL", "identity_bool", &one_input_to("BOOL", "[1,2]", &sized(2), OUT), b"\x02\xff");
    table.into_cases()
}

fn mixed() -> Vec<Case> {
    let mut table = Table::new("mixed");
    let (four, eight) = (b"\x00\x00\x80\x3f", b"\x00\x00\x80\x3f\x07\x00\x00\x00");
    let input = |index: u32, datatype: &str, rest: &str| {
        format!(r#"{{"name":"INPUT{index}","datatype":"{datatype}","shape":[1,1],{rest}}}"#)
    };
    let two = |left: &str, right: &str, behind: &str| {
        format!(r#"{{"inputs":[{},{}]{behind}}}"#, input(0, "FP32", left), input(1, "INT32", right))
    };
    let (data, size) = (r#""data":[7]"#, sized(4));
    table.binary("two inputs binary", "identity_two", &two(&size, &size, ""), eight);
    table.binary("the first input binary", "identity_two", &two(&size, data, ""), four);
    table.binary("the second input binary", "identity_two", &two(data, &size, ""), b"\x07\x00\x00\x00");
    let mut outputs = |name: &str, behind: &str| {
        table.infer(name, "identity_two", &two(data, data, behind));
    };
    outputs(
        "one output binary",
        r#","outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}},{"name":"OUTPUT1"}]"#,
    );
    outputs(
        "the other output binary",
        r#","outputs":[{"name":"OUTPUT0"},{"name":"OUTPUT1","parameters":{"binary_data":true}}]"#,
    );
    outputs(
        "both outputs binary, turned round",
        r#","outputs":[{"name":"OUTPUT1","parameters":{"binary_data":true}},{"name":"OUTPUT0","parameters":{"binary_data":true}}]"#,
    );
    outputs("all outputs binary", r#","parameters":{"binary_data_output":true}"#);
    outputs("all outputs binary, none listed", r#","parameters":{"binary_data_output":true},"outputs":[]"#);
    outputs(
        "all outputs binary, two listed",
        r#","parameters":{"binary_data_output":true},"outputs":[{"name":"OUTPUT0"},{"name":"OUTPUT1"}]"#,
    );
    outputs(
        "all outputs binary but one",
        r#","parameters":{"binary_data_output":true},"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":false}},{"name":"OUTPUT1"}]"#,
    );
    outputs(
        "no output binary but one",
        r#","parameters":{"binary_data_output":false},"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}},{"name":"OUTPUT1"}]"#,
    );
    table.into_cases()
}

fn sizes() -> Vec<Case> {
    let mut table = Table::new("tail");
    let mut row = |name: &str, size: usize, bytes: &[u8]| {
        table.binary(name, "identity_fp32", &one_input("FP32", "[1,2]", &sized(size)), bytes);
    };
    row("right", 8, b"\x00\x00\x80\x3f\x00\x00\x00\x40");
    row("too short", 8, b"1234");
    row("too long", 8, b"123456789");
    row("missing", 8, b"");
    row("a size too small for the shape", 4, b"1234");
    row("a size too large for the shape", 12, b"123456789012");
    row("a size of zero", 0, b"");
    row("a size of zero with bytes behind", 0, b"12345678");
    row("a size that is no multiple", 7, b"1234567");
    let json = one_input("FP32", "[1,2]", r#""data":[1,2]"#);
    table.binary("bytes behind JSON data", "identity_fp32", &json, b"1234");
    let large = one_input("FP32", "[1,2]", r#""parameters":{"binary_data_size":18446744073709551615}"#);
    table.binary("a size of 2^64 - 1", "identity_fp32", &large, b"12345678");
    let large = one_input("FP32", "[1,2]", r#""parameters":{"binary_data_size":9223372036854775807}"#);
    table.binary("a size of 2^63 - 1", "identity_fp32", &large, b"12345678");
    let text = one_input("FP32", "[1,2]", r#""parameters":{"binary_data_size":"8"}"#);
    table.binary("a size that is text", "identity_fp32", &text, b"12345678");
    let negative = one_input("FP32", "[1,2]", r#""parameters":{"binary_data_size":-8}"#);
    table.binary("a negative size", "identity_fp32", &negative, b"12345678");
    let integer = one_input("INT32", "[1,2]", &sized(8));
    table.binary("the wrong datatype", "identity_fp32", &integer, b"12345678");
    let unknown = one_input("FLOAT", "[1,2]", &sized(8));
    table.binary("an unknown datatype", "identity_fp32", &unknown, b"12345678");
    table.into_cases()
}

fn texts() -> Vec<Case> {
    let mut table = Table::new("bytes");
    let mut row = |name: &str, shape: &str, bytes: &[u8]| {
        let json = one_input_to("BYTES", shape, &sized(bytes.len()), OUT);
        table.binary(name, "identity_bytes", &json, bytes);
    };
    row("two texts", "[1,2]", b"\x01\x00\x00\x00a\x02\x00\x00\x00bc");
    row("two empty texts", "[1,2]", b"\x00\x00\x00\x00\x00\x00\x00\x00");
    row("a length that is cut off", "[1,1]", b"\x01\x00");
    row("a length without its text", "[1,1]", b"\x05\x00\x00\x00abc");
    row("a length of 2^32 - 1", "[1,1]", b"\xff\xff\xff\xffabc");
    row("a text too few", "[1,2]", b"\x01\x00\x00\x00a");
    row("a text too many", "[1,1]", b"\x01\x00\x00\x00a\x01\x00\x00\x00b");
    row("a length behind the last text", "[1,1]", b"\x01\x00\x00\x00a\x01\x00");
    row("nothing", "[1,1]", b"");
    row("no elements", "[1,0]", b"");
    row("no elements but a text", "[1,0]", b"\x01\x00\x00\x00a");
    let json = one_input("BYTES", "[1,1]", &sized(6));
    table.binary("no UTF-8, JSON out", "identity_bytes", &json, b"\x02\x00\x00\x00\xff\xfe");
    table.binary("control bytes, JSON out", "identity_bytes", &json, b"\x02\x00\x00\x00\x01\x0a");
    table.into_cases()
}

fn header_length() -> Vec<Case> {
    let mut table = Table::new("header length");
    let json = one_input("FP32", "[1,1]", &sized(4));
    let body = [json.as_bytes(), b"\x00\x00\x80\x3f"].concat();
    let size = json.len();
    let mut row = |name: &str, value: &str| table.with_header_length(name, "identity_fp32", value, &body);
    row("right", &size.to_string());
    row("with zeros before", &format!("000{size}"));
    row("with a plus", &format!("+{size}"));
    row("with space", &format!(" {size} "));
    row("with text behind", &format!("{size}abc"));
    row("one too small", &(size - 1).to_string());
    row("one too large", &(size + 1).to_string());
    row("all of the body", &(size + 4).to_string());
    row("more than the body", &(size + 5).to_string());
    row("negative", "-5");
    row("2^31", "2147483648");
    row("2^64", "18446744073709551616");
    row("text", "abc");
    row("a fraction", "1.5");
    row("empty", "");
    row("hexadecimal", "0x10");
    row("one", "1");
    table.post("missing", "/v2/models/identity_fp32/infer", &[], &body);
    let plain = one_input("FP32", "[1,1]", r#""data":[1]"#);
    table.binary("given for JSON alone", "identity_fp32", &plain, b"");
    table.with_header_length("too large for JSON alone", "identity_fp32", "1000", plain.as_bytes());
    let both =
        [("Inference-Header-Content-Length", size.to_string()), ("Inference-Header-Content-Length", "1".to_owned())];
    let both = both.each_ref().map(|(name, value)| (*name, value.as_str()));
    table.post("given twice", "/v2/models/identity_fp32/infer", &both, &body);
    table.binary("with space behind the JSON", "identity_fp32", &format!("{json}  \n"), b"\x00\x00\x80\x3f");
    table.binary("with text behind the JSON", "identity_fp32", &format!("{json}x"), b"\x00\x00\x80\x3f");
    table.binary("with an empty JSON part of space", "identity_fp32", "  ", b"\x00\x00\x80\x3f");
    table.into_cases()
}

fn raw() -> Vec<Case> {
    let mut table = Table::new("raw");
    let sixteen = [1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
    let mut row = |name: &str, model: &str, bytes: &[u8]| table.with_header_length(name, model, "0", bytes);
    row("a fixed shape", "identity_raw", &sixteen);
    row("a fixed shape with too few bytes", "identity_raw", &sixteen[..12]);
    row("a fixed shape with too many bytes", "identity_raw", &[sixteen.as_slice(), &sixteen].concat());
    row("a fixed shape without batching", "identity_nobatch", &sixteen);
    row("a variable shape", "identity_fp32", &sixteen);
    row("a variable shape with odd bytes", "identity_fp32", &sixteen[..15]);
    row("a variable shape without bytes", "identity_fp32", b"");
    row("a fixed shape without bytes", "identity_raw", b"");
    row("two variable dimensions", "identity_square", &sixteen);
    row("two inputs", "identity_two", &sixteen);
    row("texts of a variable shape", "identity_bytes", b"hello");
    row("one text", "identity_bytes_one", b"hello");
    row("one text without bytes", "identity_bytes_one", b"");
    row("FP16", "identity_fp16", b"\x00\x3c\x00\x40");
    row("BOOL", "identity_bool", b"\x01\x00\x01");
    row("JSON taken for a tensor", "identity_bool", b"{}");
    row("an unknown model", "nope", &sixteen);
    row("classes are not given", "classify", &sixteen);
    table.post("an empty body without the header", "/v2/models/identity_raw/infer", &[], b"");
    table.into_cases()
}
