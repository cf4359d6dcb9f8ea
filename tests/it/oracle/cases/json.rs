//! JSON inference requests that are right, and the JSON text itself: layout, ids, parameters, requested outputs.

use crate::oracle::case::{Case, Table, one_input, one_input_to};

const PAIR: &str = r#""inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]"#;

/// The cases of this group.
pub fn cases() -> Vec<Case> {
    [layout(), syntax(), ids(), parameters(), outputs(), several()].concat()
}

fn layout() -> Vec<Case> {
    let mut table = Table::new("layout");
    let mut row = |name: &str, shape: &str, data: &str| {
        table.data(name, "identity_fp32", ("FP32", shape), data);
    };
    row("flat", "[2,3]", "[1,2,3,4,5,6]");
    row("nested", "[2,3]", "[[1,2,3],[4,5,6]]");
    row("nested too deep", "[2,3]", "[[[1],[2],[3]],[[4],[5],[6]]]");
    row("nested in other rows", "[2,3]", "[[1,2],[3,4],[5,6]]");
    row("nested in part", "[2,2]", "[[1,2],3,4]");
    row("nested at the end", "[2,2]", "[1,2,[3,4]]");
    row("an empty list inside", "[1,2]", "[[],1,2]");
    row("no elements", "[1,0]", "[]");
    row("no elements, nested", "[1,0]", "[[]]");
    row("eight rows", "[8,1]", "[1,2,3,4,5,6,7,8]");
    row("a scalar for a list", "[1,1]", "1");
    row("an object for a list", "[1,1]", "{\"a\":1}");
    row("a string for a list", "[1,1]", "\"1\"");
    row("null for a list", "[1,1]", "null");
    table.data("without batching", "identity_nobatch", ("FP32", "[4]"), "[1,2,3,4]");
    table.data("two variable dimensions", "identity_square", ("FP32", "[1,2,3]"), "[[[1,2,3],[4,5,6]]]");
    table.data("texts nested", "identity_bytes", ("BYTES", "[2,2]"), r#"[["a","b"],["c","d"]]"#);
    table.data("booleans nested", "identity_bool", ("BOOL", "[2,1]"), "[[true],[false]]");
    table.data("a model that takes its time", "slow", ("FP32", "[1,1]"), "[5]");
    table.infer(
        "space everywhere",
        "identity_fp32",
        " \t\r\n{ \"inputs\" : [ {\n \"name\" : \"INPUT0\" , \"datatype\":\"FP32\",\"shape\" : [ 1 , 2 ] ,\t\"data\" : [ 1 , 2 ] } ] } \r\n",
    );
    table.infer(
        "fields in another order",
        "identity_fp32",
        r#"{"outputs":[{"name":"OUTPUT0"}],"inputs":[{"data":[1,2],"shape":[1,2],"datatype":"FP32","name":"INPUT0"}],"id":"x"}"#,
    );
    table.infer(
        "unknown fields",
        "identity_fp32",
        r#"{"model_name":"other","version":7,"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2],"unit":"m"}],"outputs":[{"name":"OUTPUT0","x":[{"y":null}]}],"z":{}}"#,
    );
    table.infer(
        "a field twice",
        "identity_fp32",
        r#"{"id":"first","id":"second","inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"shape":[1,1],"data":[1,2],"data":[3]}]}"#,
    );
    table.infer(
        "escapes in names",
        "identity_fp32",
        r#"{"\u0069nputs":[{"n\u0061me":"INPUT\u0030","datatype":"FP\u00332","shape":[1,2],"data":[1,2]}]}"#,
    );
    table.into_cases()
}

fn syntax() -> Vec<Case> {
    let mut table = Table::new("syntax");
    let mut row = |name: &str, json: &str| table.infer(name, "identity_fp32", json);
    row("only space", "  ");
    row("not JSON", "hello");
    row("a brace", "{");
    row("a bracket", "[");
    row("a list as root", "[]");
    row("a string as root", "\"inputs\"");
    row("a number as root", "1");
    row("null as root", "null");
    row("an empty object", "{}");
    row("text behind", &format!("{{{PAIR}}}x"));
    row("a second document", &format!("{{{PAIR}}}{{}}"));
    row("cut off", &format!("{{{PAIR}"));
    row("cut off in a literal", r#"{"inputs":tru"#);
    row("cut off in a string", r#"{"inputs":"abc"#);
    row("a comma too many in an object", &format!("{{{PAIR},}}"));
    row("a comma too many in a list", &one_input("FP32", "[1,2]", r#""data":[1,2,]"#));
    row("two commas", &one_input("FP32", "[1,2]", r#""data":[1,,2]"#));
    row("no comma", &one_input("FP32", "[1,2]", r#""data":[1 2]"#));
    row("no colon", r#"{"inputs" []}"#);
    row("no value", r#"{"inputs":}"#);
    row("a name without quotes", "{inputs:[]}");
    row("single quotes", "{'inputs':[]}");
    row("a comment", &format!("{{/* x */{PAIR}}}"));
    row("a line comment", &format!("{{{PAIR}}}// x"));
    row("a byte order mark", &format!("\u{feff}{{{PAIR}}}"));
    row("a literal in capitals", r#"{"inputs":TRUE}"#);
    row("the wrong bracket", r#"{"inputs":[}"#);
    row("an invalid escape in a name", r#"{"inp\qts":[]}"#);
    row("a NUL behind", &format!("{{{PAIR}}}\u{0}"));
    row("a NUL before", &format!("\u{0}{{{PAIR}}}"));
    row(
        "a hundred lists inside each other",
        &one_input("FP32", "[1,1]", &format!(r#""data":{}1{}"#, "[".repeat(90), "]".repeat(90))),
    );
    table.into_cases()
}

fn ids() -> Vec<Case> {
    let mut table = Table::new("id");
    let mut row = |name: &str, id: &str| {
        table.infer(name, "identity_fp32", &format!(r#"{{"id":{id},{PAIR}}}"#));
    };
    row("a word", "\"abc\"");
    row("empty", "\"\"");
    row("with escapes", r#""a\"b\\c\/d\n\t\u0001\u00e9""#);
    row("in unicode", "\"\u{e9}\u{20ac}\u{1f600}\"");
    row("with a surrogate pair", r#""\ud83d\ude00""#);
    row("with a NUL inside", r#""a\u0000b""#);
    row("a number", "42");
    row("null", "null");
    row("true", "true");
    row("a list", "[]");
    row("long", &format!("\"{}\"", "x".repeat(1000)));
    table.infer(
        "shown in a refusal",
        "identity_fp32",
        &format!(
            r#"{{"id":"my id","inputs":[{}]}}"#,
            r#"{"name":"INPUT0","datatype":"FP32","shape":[9,1],"data":[1,2,3,4,5,6,7,8,9]}"#
        ),
    );
    table.infer(
        "with quotes shown in a refusal",
        "identity_fp32",
        &format!(
            r#"{{"id":"a\"b\n","inputs":[{}]}}"#,
            r#"{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[1]}"#
        ),
    );
    table.into_cases()
}

fn parameters() -> Vec<Case> {
    let mut table = Table::new("parameter");
    let mut row = |parameters: &str| {
        table.infer(parameters, "identity_fp32", &format!(r#"{{"parameters":{parameters},{PAIR}}}"#));
    };
    for parameters in [
        "{}",
        r#"{"a":"x","b":1,"c":true,"d":-5}"#,
        r#"{"a":1.5}"#,
        r#"{"a":null}"#,
        r#"{"a":[]}"#,
        r#"{"a":{}}"#,
        r#"{"a":18446744073709551615}"#,
        "[]",
        "\"x\"",
        "null",
        r#"{"triton_x":1}"#,
        r#"{"triton_enable_empty_final_response":true}"#,
        r#"{"priority":1}"#,
        r#"{"priority":-1}"#,
        r#"{"priority":"1"}"#,
        r#"{"timeout":1000000}"#,
        r#"{"timeout":-1}"#,
        r#"{"timeout":"x"}"#,
        r#"{"sequence_id":1,"sequence_start":true,"sequence_end":true}"#,
        r#"{"sequence_id":"abc"}"#,
        r#"{"sequence_id":1.5}"#,
        r#"{"sequence_id":-1}"#,
        r#"{"sequence_start":1}"#,
        r#"{"sequence_end":"x"}"#,
        r#"{"headers":"x"}"#,
        r#"{"binary_data_output":false}"#,
        r#"{"binary_data_output":1}"#,
        r#"{"binary_data_output":"true"}"#,
        r#"{"":1}"#,
    ] {
        row(parameters);
    }
    let mut input = |parameters: &str| {
        let rest = format!(r#""parameters":{parameters},"data":[1,2]"#);
        table.infer(&format!("on an input {parameters}"), "identity_fp32", &one_input("FP32", "[1,2]", &rest));
    };
    for parameters in ["{}", r#"{"a":1}"#, "[]", "null", r#"{"classification":1}"#] {
        input(parameters);
    }
    let mut output = |parameters: &str| {
        let outputs = format!(r#"[{{"name":"OUTPUT0","parameters":{parameters}}}]"#);
        let json = one_input_to("FP32", "[1,2]", r#""data":[1,2]"#, &outputs);
        table.infer(&format!("on an output {parameters}"), "identity_fp32", &json);
    };
    for parameters in ["{}", r#"{"a":1}"#, "[]", "null", r#"{"binary_data":false}"#, r#"{"binary_data":1}"#] {
        output(parameters);
    }
    table.into_cases()
}

fn outputs() -> Vec<Case> {
    let mut table = Table::new("output");
    let inputs = r#""inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]},{"name":"INPUT1","datatype":"INT32","shape":[1,1],"data":[2]}]"#;
    let mut row = |outputs: &str| {
        table.infer(outputs, "identity_two", &format!(r#"{{{inputs},"outputs":{outputs}}}"#));
    };
    for outputs in [
        r#"[{"name":"OUTPUT0"}]"#,
        r#"[{"name":"OUTPUT1"}]"#,
        r#"[{"name":"OUTPUT0"},{"name":"OUTPUT1"}]"#,
        r#"[{"name":"OUTPUT1"},{"name":"OUTPUT0"}]"#,
        r#"[{"name":"OUTPUT0"},{"name":"OUTPUT0"}]"#,
        "[]",
        "null",
        "{}",
        "\"OUTPUT0\"",
        r#"["OUTPUT0"]"#,
        "[{}]",
        r#"[{"name":1}]"#,
        r#"[{"name":""}]"#,
        r#"[{"name":"NOPE"}]"#,
        r#"[{"name":"OUTPUT0"},{"name":"NOPE"}]"#,
        r#"[{"name":"output0"}]"#,
        r#"[{"name":"INPUT0"}]"#,
    ] {
        row(outputs);
    }
    table.into_cases()
}

fn several() -> Vec<Case> {
    let mut table = Table::new("several");
    let left = r#"{"name":"INPUT0","datatype":"FP32","shape":[2,2],"data":[1,2,3,4]}"#;
    let right = r#"{"name":"INPUT1","datatype":"INT32","shape":[2,1],"data":[5,6]}"#;
    table.infer("in the config's order", "identity_two", &format!(r#"{{"inputs":[{left},{right}]}}"#));
    table.infer("in another order", "identity_two", &format!(r#"{{"inputs":[{right},{left}]}}"#));
    let numbers = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16";
    let sixteen = |name: &str, shape: &str, data: &str| {
        format!(r#"{{"name":"{name}","datatype":"INT32","shape":{shape},"data":[{data}]}}"#)
    };
    let mut addsub = |name: &str, shape: &str, data: &str, outputs: &str| {
        let (left, right) = (sixteen("INPUT0", shape, data), sixteen("INPUT1", shape, data));
        table.infer(name, "addsub", &format!(r#"{{"inputs":[{left},{right}]{outputs}}}"#));
    };
    addsub("sum and difference", "[1,16]", numbers, "");
    addsub("sum and difference of two rows", "[2,16]", &format!("{numbers},{numbers}"), "");
    addsub("the difference alone", "[1,16]", numbers, r#","outputs":[{"name":"OUTPUT1"}]"#);
    addsub("too narrow", "[1,15]", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "");
    addsub("wraps around", "[1,16]", &["2147483647"; 16].join(","), "");
    table.into_cases()
}
