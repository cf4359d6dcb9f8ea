//! Element values: every datatype as JSON, at the edges of its range and beyond them.

use crate::oracle::case::{Case, Table};

/// The cases of this group.
pub fn cases() -> Vec<Case> {
    [integers(), floats(), texts(), booleans(), halves()].concat()
}

fn integers() -> Vec<Case> {
    let mut table = Table::new("integer");
    let rows = [
        ("INT8", "[-128,127,0,-1]", "[-129,128,0,0]"),
        ("INT16", "[-32768,32767,0,-1]", "[-32769,32768,0,0]"),
        ("INT32", "[-2147483648,2147483647,0,-1]", "[-2147483649,2147483648,0,1099511627776]"),
        ("INT64", "[-9223372036854775808,9223372036854775807,0,-1]", "[9223372036854775808,0,0,0]"),
        ("UINT8", "[0,255,1,128]", "[256,0,0,0]"),
        ("UINT16", "[0,65535,1,32768]", "[65536,0,0,0]"),
        ("UINT32", "[0,4294967295,1,2147483648]", "[4294967296,0,0,0]"),
        ("UINT64", "[0,18446744073709551615,1,9223372036854775808]", "[18446744073709551616,0,0,0]"),
    ];
    for (datatype, inside, outside) in rows {
        let model = format!("identity_{}", datatype.to_lowercase());
        table.data(&format!("{datatype} in its range"), &model, (datatype, "[1,4]"), inside);
        table.data(&format!("{datatype} out of its range"), &model, (datatype, "[1,4]"), outside);
    }
    let mut one = |datatype: &str, value: &str| {
        let model = format!("identity_{}", datatype.to_lowercase());
        table.data(&format!("{datatype} given {value}"), &model, (datatype, "[1,1]"), &format!("[{value}]"));
    };
    one("INT64", "-9223372036854775809");
    one("UINT8", "-1");
    one("UINT32", "-1");
    one("UINT64", "-1");
    for value in ["1.0", "1.5", "1e2", "-0", "true", "null", "\"1\"", "{}", "NaN", "100000000000000000000000"] {
        one("INT32", value);
    }
    one("UINT16", "1.0");
    one("UINT64", "true");
    one("INT64", "1e3");
    table.into_cases()
}

fn floats() -> Vec<Case> {
    let mut table = Table::new("float");
    let mut row = |name: &str, values: &str| {
        let count = values.split(',').count();
        let shape = format!("[1,{count}]");
        for datatype in ["FP32", "FP64"] {
            let model = format!("identity_{}", datatype.to_lowercase());
            table.data(&format!("{datatype} {name}"), &model, (datatype, &shape), &format!("[{values}]"));
        }
    };
    row("whole numbers", "0,1,-1,16777216,16777217,4294967296");
    row("fractions", "0.1,0.5,-2.5,3.14159265358979,0.3,1.1");
    row("negative zero", "-0,-0.0");
    row("large", "1e10,1e15,1e16,1e17,1e20,1e21,1e22,1e30,3.4028234e38");
    row("small", "1e-3,1e-4,1e-5,1e-6,1e-7,1e-10,1e-30,1e-38");
    row("exponents", "1e5,1E5,1e+5,1.5e-5,123456789e-3");
    row("denormal", "1e-45,1e-40,5e-324");
    row("more digits than fit", "0.1000000000000000055511151231257827,3.40282346638528859811704183484516925440");
    row("large integers", "9223372036854775807,18446744073709551615,18446744073709551616");
    row("NaN and Infinity", "NaN,Infinity,-Infinity");
    row("nan", "nan");
    row("Inf", "Inf,-Inf");
    row("+1", "+1");
    row(".5", ".5");
    row("5.", "5.");
    row("0x10", "0x10");
    row("01", "01");
    row("1e", "1e");
    row("-", "-");
    row("a number too large for a double", "1e999");
    row("a number too small for a double", "1e-999");
    row("true", "true");
    row("null", "null");
    row("a string", "\"1\"");
    row("an object", "{}");
    table.data("FP32 from a double beyond its range", "identity_fp32", ("FP32", "[1,1]"), "[1e39]");
    table.data(
        "FP64 at its edge",
        "identity_fp64",
        ("FP64", "[1,2]"),
        "[1.7976931348623157e308,2.2250738585072014e-308]",
    );
    table.into_cases()
}

fn texts() -> Vec<Case> {
    let mut table = Table::new("text");
    let mut row = |name: &str, values: &str| {
        let count = values.split(',').count();
        table.data(name, "identity_bytes", ("BYTES", &format!("[1,{count}]")), &format!("[{values}]"));
    };
    row("plain", r#""hello","world""#);
    row("empty", r#"""#.repeat(2).as_str());
    row("short escapes", r#""\"\\\/\b\f\n\r\t""#);
    row("unicode escapes", r#""\u0041\u00e9\u20ac\u0000\u001f\u007f""#);
    row("a surrogate pair", r#""\ud83d\ude00""#);
    row("raw unicode", "\"h\u{e9}llo \u{20ac} \u{1f600} \u{2028}\"");
    row("a lone high surrogate", r#""\ud83d""#);
    row("a lone low surrogate", r#""\ude00""#);
    row("a high surrogate before another character", r#""\ud83dx""#);
    row("an unknown escape", r#""\x41""#);
    row("a short unicode escape", r#""\u12""#);
    row("a raw control character", "\"a\u{1}b\"");
    row("a raw newline", "\"a\nb\"");
    row("a raw delete", "\"a\u{7f}b\"");
    row("no end", r#""abc"#);
    row("a number", "1");
    row("true", "true");
    row("null", "null");
    row("a list", r#"["a"]"#);
    row("slashes and quotes", r#""a/b\\c\"d'e""#);
    let mut invalid = br#"{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,1],"data":["a"#.to_vec();
    invalid.extend(b"\xff\xfeb\"]}]}");
    table.post("bytes that are no UTF-8", "/v2/models/identity_bytes/infer", &[], &invalid);
    table.into_cases()
}

fn booleans() -> Vec<Case> {
    let mut table = Table::new("boolean");
    let mut row = |values: &str| {
        let shape = format!("[1,{}]", values.split(',').count());
        table.data(values, "identity_bool", ("BOOL", &shape), &format!("[{values}]"));
    };
    row("true,false,true");
    row("1,0");
    row("2");
    row("0.0");
    row("\"true\"");
    row("null");
    row("True");
    table.into_cases()
}

fn halves() -> Vec<Case> {
    let mut table = Table::new("half");
    table.data("FP16 as JSON", "identity_fp16", ("FP16", "[1,2]"), "[1.0,2.0]");
    table.data("BF16 as JSON", "identity_bf16", ("BF16", "[1,2]"), "[1.0,2.0]");
    table.data("FP16 as JSON without elements", "identity_fp16", ("FP16", "[1,0]"), "[]");
    table.into_cases()
}
