//! Rewrites of Triton's answers for decisions about the text of values, rather than about single answers.

use crate::support::escape::escape;

/// A JSON answer with its FP32 and FP64 elements in the shortest text that reads back to the same value.
pub fn shortest_floats(answer: &str) -> String {
    let mut rewritten = String::with_capacity(answer.len());
    let mut rest = answer;
    while let Some((is_single, start)) = next_float_data(rest) {
        let (before, data) = rest.split_at(start);
        let end = data.find(']').unwrap_or(data.len());
        let (numbers, behind) = data.split_at(end);
        rewritten.push_str(before);
        let numbers: Vec<_> = numbers.split(',').map(|number| shortest_float(number, is_single)).collect();
        rewritten.push_str(&numbers.join(","));
        rest = behind;
    }
    rewritten.push_str(rest);
    rewritten
}

/// Position of the next list of floats, and whether they are FP32.
fn next_float_data(text: &str) -> Option<(bool, usize)> {
    let (datatype, place) = ["\"datatype\":\"FP32\"", "\"datatype\":\"FP64\""]
        .iter()
        .filter_map(|mark| text.find(mark).map(|place| (*mark, place)))
        .min_by_key(|(_, place)| *place)?;
    let object = text.get(place..)?;
    let data = object.find("\"data\":[")? + "\"data\":[".len();
    // An output with binary data has no list: the next list is then another output's.
    match object.find('}') {
        Some(end) if end < data => {
            let next = next_float_data(object.get(end..)?)?;
            Some((next.0, place + end + next.1))
        }
        _ => Some((datatype.contains("FP32"), place + data)),
    }
}

fn shortest_float(number: &str, is_single: bool) -> String {
    let mut buffer = zmij::Buffer::new();
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() && is_single => as_triton_lays_out(buffer.format_finite(value as f32)),
        Ok(value) if value.is_finite() => as_triton_lays_out(buffer.format_finite(value)),
        _ => number.to_owned(),
    }
}

/// The shortest text of a number in the layout of Triton's answers: up to 21 digits before the point and up to five
/// zeros behind it are written out, and an exponent has no plus sign.
fn as_triton_lays_out(text: &str) -> String {
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |text| ("-", text));
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let fraction = fraction.trim_end_matches('0');
    let all = format!("{whole}{fraction}");
    let leading = all.len() - all.trim_start_matches('0').len();
    let digits = all.trim_start_matches('0');
    // The position of the decimal point among the digits.
    let point =
        i32::try_from(whole.len()).expect("a short text") + exponent - i32::try_from(leading).expect("the same");
    let trimmed = digits.trim_end_matches('0');
    match (trimmed.is_empty(), usize::try_from(point)) {
        (true, _) => format!("{sign}0.0"),
        (_, Ok(point)) if (1..=21).contains(&point) && trimmed.len() <= point => format!("{sign}{trimmed:0<point$}.0"),
        (_, Ok(point)) if (1..=21).contains(&point) => {
            let (before, behind) = trimmed.split_at(point);
            format!("{sign}{before}.{behind}")
        }
        _ if (-5..=0).contains(&point) => format!("{sign}0.{}{trimmed}", "0".repeat(point.unsigned_abs() as usize)),
        _ => {
            let (first, rest) = trimmed.split_at(1);
            let point_mark = if rest.is_empty() { "" } else { "." };
            format!("{sign}{first}{point_mark}{rest}e{}", point - 1)
        }
    }
}

/// An answer with doubles as they were sent; Triton's reader gets their last digit wrong.
pub fn exact_doubles(answer: &str) -> String {
    const DOUBLES: &[(&str, &str)] = &[
        ("9.999999999999999e-31", "1e-30"),
        ("1.0000000000000002e-45", "1e-45"),
        ("3.4028234663852885", "3.4028234663852888"),
    ];
    replaced(answer, DOUBLES)
}

/// An answer about the built-in identity, from one about the oracle's model in Python.
pub fn as_identity(answer: &str) -> String {
    const WORDS: &[(&str, &str)] = &[
        (":\"python\"", ":\"identity\""),
        (": \"python\"", ": \"identity\""),
        ("\"default_model_filename\":\"model.py\"", "\"default_model_filename\":\"\""),
        ("  8: \"model.py\"\n", ""),
    ];
    replaced(answer, WORDS)
}

/// An answer about an ONNX model, from one about the oracle's model in Python. Triton's ONNX backend, too, has two
/// instances on a CPU if the configuration names no number.
pub fn as_onnx(answer: &str) -> String {
    const WORDS: &[(&str, &str)] = &[
        ("\"platform\":\"python\"", "\"platform\":\"onnxruntime_onnx\""),
        ("\"platform\":\"\",\"backend\":\"python\"", "\"platform\":\"onnxruntime_onnx\",\"backend\":\"onnxruntime\""),
        ("\"kind\":\"KIND_CPU\",\"count\":1", "\"kind\":\"KIND_CPU\",\"count\":2"),
        ("model.py", "model.onnx"),
        ("  1: \"addsub\"\n  3 {", "  1: \"addsub\"\n  2: \"onnxruntime_onnx\"\n  3 {"),
        ("    2: 1\n    4: 2", "    2: 2\n    4: 2"),
        ("\n3: \"python\"", "\n3: \"onnxruntime_onnx\""),
        (
            "  17: \"python\"",
            "  14 {\n    1: \"served_engine\"\n    2 {\n      1: \"embedded\"\n    }\n  }\n\
             \x20 14 {\n    1: \"served_engine_version\"\n    2 {\n      1: \"rten 0.27.0\"\n    }\n  }\n  17: \"onnxruntime\"",
        ),
        (
            "\"placement\":{\"string_value\":\"inline\"}}",
            "\"placement\":{\"string_value\":\"inline\"},\"served_engine\":{\"string_value\":\"embedded\"},\
             \"served_engine_version\":{\"string_value\":\"rten 0.27.0\"}}",
        ),
    ];
    replaced(answer, WORDS)
}

/// A configuration in an answer, with its placement: a model that sleeps runs on a worker, all others inline.
pub fn with_placement(answer: &str) -> String {
    let is_slow = answer.contains("\"execute_delay_ms\"");
    let (placement, comma) = if is_slow { ("worker", ",") } else { ("inline", "") };
    let json = format!("{comma}\"placement\":{{\"string_value\":\"{placement}\"}}}},\"model_warmup\"");
    let grpc = format!("  14 {{\n    1: \"placement\"\n    2 {{\n      1: \"{placement}\"\n    }}\n  }}\n  17: \"");
    replaced(answer, &[("},\"model_warmup\"", json.as_str()), ("  17: \"", grpc.as_str())])
}

fn replaced(answer: &str, words: &[(&str, &str)]) -> String {
    words.iter().fold(answer.to_owned(), |answer, (from, to)| answer.replace(from, to))
}

/// A JSON answer with classification texts (`"3.500000:1:banana"`) whose value is the shortest text of an FP32.
pub fn shortest_classes(answer: &str) -> String {
    let texts = answer.split('"');
    let rewritten: Vec<_> = texts.map(|text| shortest_class(text).unwrap_or_else(|| text.to_owned())).collect();
    rewritten.join("\"")
}

/// A gRPC answer's dump with raw classification texts whose value is the shortest text of an FP32.
pub fn shortest_raw_classes(answer: &str) -> String {
    let Some((before, raw)) = answer.rsplit_once("6: bytes \"") else { return answer.to_owned() };
    match raw.strip_suffix('"').and_then(shortest_raw) {
        Some((raw, _)) => format!("{before}6: bytes \"{raw}\""),
        None => answer.to_owned(),
    }
}

/// An HTTP answer whose one output is binary classification texts, with the shortest text of an FP32.
pub fn shortest_binary_classes(answer: &str) -> String {
    let shortened = answer.split_once("\nbinary ").and_then(|(json, tail)| {
        let (size, raw) = tail.split_once(": ")?;
        let (raw, short_size) = shortest_raw(raw)?;
        let field = |size: &str| format!("\"binary_data_size\":{size}}}");
        let json = json.replace(&field(size), &field(&short_size.to_string()));
        Some(format!("{json}\nbinary {short_size}: {raw}"))
    });
    shortened.unwrap_or_else(|| answer.to_owned())
}

/// Escaped texts with their lengths, the texts shortened; and the bytes they take.
fn shortest_raw(raw: &str) -> Option<(String, usize)> {
    let (mut short, mut size) = (String::new(), 0);
    // Four bytes of length precede every text; the last three of them are zero.
    for text in raw.split("\\x00\\x00\\x00").skip(1) {
        let text = text.rsplit_once("\\x").map_or(text, |(text, _)| text);
        let text = shortest_class(text).unwrap_or_else(|| text.to_owned());
        let length = u32::try_from(text.len()).ok()?.to_le_bytes();
        short.push_str(&escape(&length));
        short.push_str(&text);
        size += length.len() + text.len();
    }
    Some((short, size))
}

/// `None` for a text that is not a classification of a float.
fn shortest_class(text: &str) -> Option<String> {
    let (value, rest) = text.split_once(':')?;
    let (_, decimals) = value.split_once('.')?;
    let value = shortest_float(value, true);
    let value = value.strip_suffix(".0").unwrap_or(&value);
    (decimals.len() == 6).then(|| format!("{value}:{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_become_short_in_the_outputs_of_their_datatype() {
        let check = |answer: &str, want: &str| assert_eq!(shortest_floats(answer), want);
        check(
            r#""datatype":"FP32","shape":[1,2],"data":[0.10000000149011612,NaN]},{"datatype":"FP64","data":[0.10000000149011612]}"#,
            r#""datatype":"FP32","shape":[1,2],"data":[0.1,NaN]},{"datatype":"FP64","data":[0.10000000149011612]}"#,
        );
        let other = r#"{"datatype":"FP32","shape":[1],"parameters":{}},{"datatype":"INT32","data":[1]}"#;
        check(other, other);
        check("500 -", "500 -");
    }

    #[test]
    fn floats_are_laid_out_as_triton_does() {
        let check = |number: &str, is_single, want: &str| assert_eq!(shortest_float(number, is_single), want);
        check("0.0", false, "0.0");
        check("-0.0", true, "-0.0");
        check("-1.5", true, "-1.5");
        check("100.0", false, "100.0");
        check("0.05", false, "0.05");
        check("0.000001", false, "0.000001");
        check("1e-7", false, "1e-7");
        check("1.25e-7", false, "1.25e-7");
        check("123456.5", true, "123456.5");
        check("18446744073709553000.0", true, "18446744000000000000.0");
        check("18446744073709553000.0", false, "18446744073709552000.0");
        check("100000002004087730000.0", true, "100000000000000000000.0");
        check("1.0000000200408774e21", true, "1e21");
        check("1.6777999408082105e22", true, "1.6777999e22");
        check("NaN", true, "NaN");
    }

    #[test]
    fn the_words_of_the_oracles_platform_become_ours() {
        let metadata = "OK\n1: \"addsub\"\n3: \"python\"\n4 {";
        assert_eq!(as_identity(metadata), "OK\n1: \"addsub\"\n3: \"identity\"\n4 {");
        assert_eq!(as_onnx(metadata), "OK\n1: \"addsub\"\n3: \"onnxruntime_onnx\"\n4 {");
        let config = "\"platform\":\"\",\"backend\":\"python\",\"default_model_filename\":\"model.py\"";
        let want = "\"platform\":\"\",\"backend\":\"identity\",\"default_model_filename\":\"\"";
        assert_eq!(as_identity(config), want);
    }

    #[test]
    fn a_configuration_says_where_its_model_runs() {
        let check = |answer: &str, want: &str| assert_eq!(with_placement(answer), want);
        let inline = r#""parameters":{"placement":{"string_value":"inline"}},"model_warmup":[]}"#;
        check(r#""parameters":{},"model_warmup":[]}"#, inline);
        let delay = r#""parameters":{"execute_delay_ms":{"string_value":"300"}"#;
        let worker = r#","placement":{"string_value":"worker"}},"model_warmup":[]}"#;
        check(&format!(r#"{delay}}},"model_warmup":[]}}"#), &format!("{delay}{worker}"));
        let grpc = "  14 {\n    1: \"placement\"\n    2 {\n      1: \"inline\"\n    }\n  }\n  17: \"python\"\n";
        check("  17: \"python\"\n", grpc);
    }

    #[test]
    fn classes_become_short_where_their_lengths_are_told() {
        let check = |raw: &str, want: &str| assert_eq!(shortest_raw_classes(raw), want);
        check(
            "5 {\n}\n6: bytes \"\\x10\\x00\\x00\\x003.500000:1:apple\"",
            "5 {\n}\n6: bytes \"\\x0b\\x00\\x00\\x003.5:1:apple\"",
        );
        check(
            "6: bytes \"\\x04\\x00\\x00\\x0010:0\\x03\\x00\\x00\\x007:2\"",
            "6: bytes \"\\x04\\x00\\x00\\x0010:0\\x03\\x00\\x00\\x007:2\"",
        );
        check("NotFound: m", "NotFound: m");
        let answer =
            "200 -\n{\"binary_data_size\":28}\nbinary 28: \\x0a\\x00\\x00\\x003.500000:1\\x0a\\x00\\x00\\x002.000000:0";
        let want = "200 -\n{\"binary_data_size\":16}\nbinary 16: \\x05\\x00\\x00\\x003.5:1\\x03\\x00\\x00\\x002:0";
        assert_eq!(shortest_binary_classes(answer), want);
    }

    #[test]
    fn classes_become_short_and_other_texts_stay() {
        let check = |answer: &str, want: &str| assert_eq!(shortest_classes(answer), want);
        check(r#"["3.500000:1:banana","-0.250000:3"]"#, r#"["3.5:1:banana","-0.25:3"]"#);
        check(r#"["10:0","a.b:c","1.5:1"]"#, r#"["10:0","a.b:c","1.5:1"]"#);
    }
}
