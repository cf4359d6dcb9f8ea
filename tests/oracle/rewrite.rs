//! How Triton's answers are rewritten where a decision is about the text of values, not about single answers.

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

/// Where the next list of floats begins, and whether they are FP32.
fn next_float_data(text: &str) -> Option<(bool, usize)> {
    let (datatype, place) = ["\"datatype\":\"FP32\"", "\"datatype\":\"FP64\""]
        .iter()
        .filter_map(|mark| text.find(mark).map(|place| (*mark, place)))
        .min_by_key(|(_, place)| *place)?;
    let object = text.get(place..)?;
    let data = object.find("\"data\":[")? + "\"data\":[".len();
    // An output whose data is binary has no list: the list found is then another output's.
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
        Ok(value) if value.is_finite() && is_single => buffer.format_finite(value as f32).to_owned(),
        Ok(value) if value.is_finite() => buffer.format_finite(value).to_owned(),
        _ => number.to_owned(),
    }
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
    // Every text stands behind four bytes of length, of which the last three are zero.
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

/// `None` for what is no classification text of a float.
fn shortest_class(text: &str) -> Option<String> {
    let (value, rest) = text.split_once(':')?;
    let (_, decimals) = value.split_once('.')?;
    let value: f32 = value.parse().ok()?;
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
