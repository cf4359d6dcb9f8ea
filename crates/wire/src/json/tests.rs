//! Tables of faults, elements and texts, and comparisons of the readers with `serde_json`.

use super::*;

/// A random generator with a fixed seed (SplitMix64), so that every run has the same numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len() as u64) as usize]
    }
}

fn verdict(text: &[u8]) -> String {
    match Document::parse(text, &[]) {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// The one array of `{"data":…}`, as text.
fn raw<'d, 'a>(document: &'d Document<'a>) -> &'d RawArray<'a> {
    match document.root().get("data").unwrap().kind() {
        ValueKind::Raw(array) => array,
        kind => panic!("{kind:?}"),
    }
}

fn numbers<T: Number + Default>(array: &str, count: usize) -> Result<Vec<T>, ArrayError> {
    let text = format!("{{\"data\":{array}}}");
    let document = Document::parse(text.as_bytes(), &["data"]).map_err(ArrayError::Json)?;
    let mut out = vec![T::default(); count];
    read_numbers(raw(&document), &mut out).map(|()| out)
}

#[test]
fn faults_have_rapidjsons_words_and_offsets() {
    let check = |text: &str, want: &str| assert_eq!(verdict(text.as_bytes()), want, "{text:?}");
    check("", "The document is empty. at 0");
    check("  \n", "The document is empty. at 3");
    check("]", "The document is empty. at 0");
    check("{}x", "The document root must not be followed by other values. at 2");
    check("{} {}", "The document root must not be followed by other values. at 3");
    check("{\"a\":x}", "Invalid value. at 5");
    check("{\"a\":tru}", "Invalid value. at 8");
    check("{\"a\":", "Invalid value. at 5");
    check("{\"a\":-}", "Invalid value. at 6");
    check("{\"a\":+1}", "Invalid value. at 5");
    check("{\"a\":.5}", "Invalid value. at 5");
    check("[1,]", "Invalid value. at 3");
    check("[", "Invalid value. at 1");
    check("[}", "Invalid value. at 1");
    check("{", "Missing a name for object member. at 1");
    check("{a:1}", "Missing a name for object member. at 1");
    check("{\"a\":1,}", "Missing a name for object member. at 7");
    check("{\"a\" 1}", "Missing a colon after a name of object member. at 5");
    check("{\"a\":1 \"b\":2}", "Missing a comma or '}' after an object member. at 7");
    check("{\"a\":01}", "Missing a comma or '}' after an object member. at 6");
    check("[1 2]", "Missing a comma or ']' after an array element. at 3");
    check("[1,2", "Missing a comma or ']' after an array element. at 4");
    check("[1}", "Missing a comma or ']' after an array element. at 2");
    check("[\"a", "Missing a closing quotation mark in string. at 3");
    check("[\"a\0\"]", "Missing a closing quotation mark in string. at 3");
    check("[\"a\n\"]", "Invalid escape character in string. at 3");
    check("[\"ab\\x\"]", "Invalid escape character in string. at 4");
    check("[\"ab\\u00g0\"]", "Incorrect hex digit after \\u escape in string. at 4");
    check("[\"\\ud800\"]", "The surrogate pair in string is invalid. at 2");
    check("[\"\\ud800\\u0041\"]", "The surrogate pair in string is invalid. at 2");
    check("[\"\\udc00\"]", "The surrogate pair in string is invalid. at 2");
    check("[1e999]", "Number too big to be stored in double. at 1");
    check("[-1e309]", "Number too big to be stored in double. at 1");
    check("[1.]", "Miss fraction part in number. at 3");
    check("[1e+]", "Miss exponent in number. at 4");
    check("[1e]", "Miss exponent in number. at 3");
    check("[/*a*/1]", "Invalid value. at 1");
    assert_eq!(verdict(b"[\"a\xff\"]"), "Invalid encoding in string. at 3");
    check("\0{}", "The document is empty. at 0");
    check("{}\0", "The document root must not be followed by other values. at 2");
    check("\u{feff} {}", "ok");
    check("\u{feff}{}x", "The document root must not be followed by other values. at 5");
    check("\u{feff}\u{feff}{}", "Invalid value. at 3");
}

#[test]
fn the_words_of_javascript_for_no_number_are_numbers() {
    let check = |text: &str, want: &str| assert_eq!(verdict(text.as_bytes()), want, "{text}");
    check("[NaN,Inf,-Inf,Infinity,-Infinity,-NaN]", "ok");
    check("[nan]", "Invalid value. at 2");
    check("[Infini]", "Invalid value. at 7");
    check("[Nan]", "Invalid value. at 3");
    let got = numbers::<f32>("[NaN, -Infinity, Inf, -Inf]", 4).unwrap();
    assert!(got[0].is_nan());
    assert_eq!(got[1..], [f32::NEG_INFINITY, f32::INFINITY, f32::NEG_INFINITY]);
}

#[test]
fn depth_and_values_are_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(verdict(nested(JSON_DEPTH_MAX).as_bytes()), "ok");
    let want = format!("JSON nesting depth exceeds maximum allowed limit ({JSON_DEPTH_MAX})");
    assert_eq!(verdict(nested(JSON_DEPTH_MAX + 1).as_bytes()), want);
    assert_eq!(verdict("[".repeat(1_000_000).as_bytes()), want);
    // Inside an object, one level is spent.
    let data = |depth: usize| numbers::<f32>(&nested(depth), 0);
    assert_eq!(data(JSON_DEPTH_MAX - 1), Ok(Vec::new()));
    let fault = |result: Result<Vec<f32>, ArrayError>| match result {
        Err(ArrayError::Json(error)) => error.fault,
        other => panic!("{other:?}"),
    };
    assert_eq!(fault(data(JSON_DEPTH_MAX)), JsonFault::Depth);

    let many = format!("[0{}]", ",0".repeat(JSON_NODES_MAX));
    assert!(verdict(many.as_bytes()).starts_with("JSON has more than the maximum of 262144 values"));
    let kept = format!("{{\"data\":{many}}}");
    assert!(Document::parse(kept.as_bytes(), &["data"]).is_ok());
}

#[test]
fn of_a_list_that_is_too_long_the_rest_is_checked_and_takes_no_memory() {
    let long = |tail: &str| {
        let list = [r#"{"n":"a","l":[1,[2],3,4],"data":[1"#, r#"]}"#].concat();
        format!(r#"{{"list":[{list},{list},{list},{list}{tail}],"next":{list},"end":7}}"#)
    };
    let some = |text: &str| Document::parse_some(text.as_bytes(), &["data"], 2).map(|document| document.raw_count());
    let text = long("");
    let document = Document::parse_some(text.as_bytes(), &["data"], 2).unwrap();
    let root = document.root();
    let elements: Vec<_> = root.get("list").unwrap().elements().collect();
    assert_eq!(elements.len(), 2);
    for value in elements.into_iter().chain(root.get("next")) {
        assert_eq!(value.members().map(|(name, _)| name).collect::<Vec<_>>(), ["n", "l", "data"]);
        assert_eq!(value.get("l").unwrap().elements().count(), 2);
    }
    assert_eq!(root.get("end").and_then(JsonValue::as_u64), Some(7));
    assert_eq!(root.members().count(), 3);
    for (text, want) in
        [("[1]", false), ("[1,2]", true), ("[1,2,3]", true), ("[{},[{},{}]]", true), ("{\"data\":[1,2]}", false)]
    {
        let document = Document::parse_some(text.as_bytes(), &["data"], 2).unwrap();
        assert_eq!(document.has_full_array(), want, "{text}");
    }
    // As many values as a list of two has, however long it is.
    assert_eq!((some(&text), some(&long(&",{}".repeat(JSON_NODES_MAX)))), (Ok(3), Ok(3)));
    for fault in [",", ",{", ",[[1,2]", ",\"", ",{\"n\":1,}"] {
        let text = long(fault);
        let want = Document::parse(text.as_bytes(), &["data"]).unwrap_err();
        assert_eq!(some(&text), Err(want), "{fault}");
    }
}

#[test]
fn of_a_document_of_many_values_a_list_that_will_be_too_long_is_not_kept() {
    let element = r#"{"n":"],{,","l":[[1,2],{"a":3},"\\\""],"o":{"a":1,"b":[2]},"data":[1,2]}"#;
    let some = |text: &str| Document::parse_some(text.as_bytes(), &["data"], 500).map(|document| document.nodes());
    for (count, kept, nodes) in [(499, 499, 499 * 14 + 8), (500, 0, 8), (501, 0, 8), (10_000, 0, 8)] {
        let list = vec![element; count].join(" , ");
        let text = format!(r#"{{"before":[1],"list":[{list}],"after":[{{"a":[2]}}]}}"#);
        let document = Document::parse_some(text.as_bytes(), &["data"], 500).unwrap();
        let root = document.root();
        assert_eq!(root.members().map(|(name, _)| name).collect::<Vec<_>>(), ["before", "list", "after"], "{count}");
        let list = root.get("list").unwrap();
        assert_eq!((list.elements().count(), list.is_full(), document.nodes()), (kept, count >= 500, nodes), "{count}");
        assert!(!root.is_full() && !root.get("before").unwrap().is_full() && !root.get("after").unwrap().is_full());
        let after = root.get("after").unwrap().elements().next().and_then(|value| value.get("a")).unwrap();
        assert_eq!(after.elements().next().and_then(JsonValue::as_u64), Some(2), "{count}");
        // A fault behind it is found all the same.
        for fault in ["}", "]", "\"", ",", "{"] {
            let text = text.replace(r#","after""#, &format!(r#"{fault},"after""#));
            let want = Document::parse(text.as_bytes(), &["data"]).unwrap_err();
            assert_eq!(some(&text), Err(want), "{count} {fault}");
        }
    }
    // One after the other, each is looked at by itself; a list in a list belongs to the outermost.
    let list = vec![element; 600].join(",");
    let text = format!(r#"{{"a":[{list}],"b":[{list}],"c":[[{list}],[{list}]]}}"#);
    let document = Document::parse_some(text.as_bytes(), &["data"], 500).unwrap();
    let full = |name| document.root().get(name).unwrap().is_full();
    assert_eq!((full("a"), full("b"), full("c")), (true, true, false));
}

#[test]
fn the_tree_answers_for_names_and_the_first_of_two_wins() {
    let text =
        br#" {"a" : [1, {"b":"x\u00e9\ud83d\ude00\n"}, []], "a": 2, "n": -0, "t": true, "z": 18446744073709551615} "#;
    let document = Document::parse(text, &[]).unwrap();
    let root = document.root();
    let elements: Vec<_> = root.get("a").unwrap().elements().collect();
    assert_eq!(elements.len(), 3);
    assert_eq!(elements[0].as_u64(), Some(1));
    assert_eq!(elements[1].get("b").and_then(JsonValue::as_str), Some("xé😀\n"));
    assert_eq!(elements[2].elements().count(), 0);
    assert_eq!(root.get("n").and_then(JsonValue::as_u64), Some(0));
    assert_eq!(root.get("t").and_then(JsonValue::as_bool), Some(true));
    assert_eq!(root.get("z").and_then(JsonValue::as_u64), Some(u64::MAX));
    assert_eq!(root.members().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "a", "n", "t", "z"]);
    assert!(root.get("b").is_none());
    assert!(elements[0].get("b").is_none());
}

#[test]
fn elements_nested_or_flat_fill_the_memory() {
    assert_eq!(numbers("[[1, 2], [3,4]]", 4), Ok(vec![1_i32, 2, 3, 4]));
    assert_eq!(numbers(" [ 1 ,[[ ]], -2 ] ", 2), Ok(vec![1_i8, -2]));
    assert_eq!(numbers("[12345678, 123456789012345678, 18446744073709551615]", 3), {
        Ok(vec![12_345_678_u64, 123_456_789_012_345_678, u64::MAX])
    });
    assert_eq!(numbers("[-9223372036854775808, 9223372036854775807]", 2), Ok(vec![i64::MIN, i64::MAX]));
    assert_eq!(numbers::<u8>("[]", 0), Ok(vec![]));
    assert_eq!(numbers::<u8>("[1,2]", 3), Err(ArrayError::TooFew));
    assert_eq!(numbers::<u8>("[1,2]", 1), Err(ArrayError::TooMany));
}

#[test]
fn elements_of_another_kind_or_range_are_told() {
    let check = |array: &str, want: ArrayError| assert_eq!(numbers::<u8>(array, 3), Err(want), "{array}");
    let range = |index, text: &str| ArrayError::Range { index, text: text.to_owned() };
    let fraction = |index, text: &str| ArrayError::Fraction { index, text: text.to_owned() };
    check("[1,256,3]", range(1, "256"));
    check("[-1,2,3]", range(0, "-1"));
    check("[1,2,99999999999999999999999]", range(2, "99999999999999999999999"));
    check("[1,1.0,3]", fraction(1, "1.0"));
    check("[1,2,1e2]", fraction(2, "1e2"));
    check("[1,2,\"3\"]", ArrayError::Kind);
    check("[1,null,3]", ArrayError::Kind);
    check("[true,2,3]", ArrayError::Kind);
    check("[{},2,3]", ArrayError::Kind);
    check("[1,NaN,3]", ArrayError::Kind);
    let long = "1".repeat(40);
    check(&format!("[{long}]"), range(0, &format!("{}...", "1".repeat(32))));
    assert_eq!(numbers::<f32>("[1e39]", 1), Err(range(0, "1e39")));
    assert_eq!(numbers::<f32>("[-3.4028235e38]", 1), Ok(vec![f32::MIN]));
    let zeros = numbers::<f32>("[-0, -0.0, -0e1, 0]", 4).unwrap();
    assert_eq!(zeros.iter().map(|zero| zero.is_sign_negative()).collect::<Vec<_>>(), [false, true, true, false]);
}

#[test]
fn a_fault_inside_kept_text_has_its_place_in_the_document() {
    let check = |array: &str, want: &str| match numbers::<f32>(array, 3) {
        Err(ArrayError::Json(error)) => assert_eq!(error.to_string(), want, "{array}"),
        other => panic!("{array}: {other:?}"),
    };
    check("[1,,3]", "Invalid value. at 11");
    check("[1,2,]", "Invalid value. at 13");
    check("[01,2,3]", "Missing a comma or ']' after an array element. at 10");
    check("[1,2 3]", "Missing a comma or ']' after an array element. at 13");
    check("[1,2}", "Missing a comma or ']' after an array element. at 12");
    check("[1,2", "Missing a comma or ']' after an array element. at 12");
    check("[1,{,3]", "Missing a name for object member. at 12");
    check("[1e999]", "Number too big to be stored in double. at 9");
    check("[1,-,3]", "Invalid value. at 12");
    check("[1.,2]", "Miss fraction part in number. at 11");
    check("[\"]\",tru]", "Invalid value. at 16");
}

#[test]
fn booleans_and_strings_are_read_in_their_own_form() {
    let document = Document::parse(br#"{"data":[[true,false],[true]]}"#, &["data"]).unwrap();
    let mut out = [9; 3];
    assert_eq!(read_booleans(raw(&document), &mut out), Ok(()));
    assert_eq!(out, [1, 0, 1]);
    assert_eq!(read_booleans(raw(&document), &mut [0; 4]), Err(ArrayError::TooFew));
    assert_eq!(read_booleans(raw(&document), &mut [0; 2]), Err(ArrayError::TooMany));

    let document = Document::parse(br#"{"data":["ab",["","\u00e9]\"x"]]}"#, &["data"]).unwrap();
    let mut out = Vec::new();
    assert_eq!(read_strings(raw(&document), &mut out), Ok(3));
    assert_eq!(out, "\x02\0\0\0ab\0\0\0\0\x05\0\0\0é]\"x".as_bytes());
    assert_eq!(read_booleans(raw(&document), &mut [0; 3]), Err(ArrayError::Kind));
    assert_eq!(numbers::<f32>("[1]", 1).map(|_| ()), Ok(()));
}

#[test]
fn strings_are_escaped_as_rapidjson_does() {
    let check = |text: &str, want: &str| {
        let mut out = Vec::new();
        writer::string(text, &mut out);
        assert_eq!(out, want.as_bytes(), "{text:?}");
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
    };
    check("plain /é😀", "\"plain /é😀\"");
    check("a\"b\\c", r#""a\"b\\c""#);
    check("\u{8}\u{c}\n\r\t", r#""\b\f\n\r\t""#);
    check("\0\u{1}\u{1f}\u{7f}", "\"\\u0000\\u0001\\u001F\u{7f}\"");
    check(&format!("{}\n{}", "x".repeat(70), "y".repeat(70)), &format!("\"{}\\n{}\"", "x".repeat(70), "y".repeat(70)));
}

fn float_text<F: writer::Float>(value: F) -> String {
    let mut out = Vec::new();
    writer::float(value, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn floats_are_short_and_laid_out_as_rapidjson_does() {
    let check = |value: f32, want: &str| assert_eq!(float_text(value), want);
    check(0.0, "0.0");
    check(-0.0, "-0.0");
    check(1.0, "1.0");
    check(0.1, "0.1");
    check(-3.25, "-3.25");
    check(1e15, "1000000000000000.0");
    check(1e20, "100000000000000000000.0");
    check(1.5e20, "150000000000000000000.0");
    check(1e21, "1e21");
    check(1e30, "1e30");
    check(f32::MAX, "3.4028235e38");
    check(f32::MIN, "-3.4028235e38");
    check(1e-5, "0.00001");
    check(1.5e-6, "0.0000015");
    check(1.5e-7, "1.5e-7");
    check(1e-45, "1e-45");
    check(f32::NAN, "NaN");
    check(f32::INFINITY, "Infinity");
    check(f32::NEG_INFINITY, "-Infinity");
    assert_eq!(float_text(0.1_f64), "0.1");
    assert_eq!(float_text(f64::from(0.1_f32)), "0.10000000149011612");
    assert_eq!(float_text(123_456_789_012_345_680_000.0_f64), "123456789012345680000.0");
    assert_eq!(float_text(f64::MAX), "1.7976931348623157e308");
    assert_eq!(float_text(5e-324_f64), "5e-324");
}

#[test]
fn every_float_that_is_written_reads_back_bit_for_bit() {
    let mut random = Random(1);
    for _ in 0..60_000 {
        let bits = random.next();
        let narrow = f32::from_bits(bits as u32);
        if narrow.is_finite() {
            let text = float_text(narrow);
            assert_eq!(text.parse::<f32>().unwrap().to_bits(), narrow.to_bits(), "{text}");
            assert_eq!(numbers::<f32>(&format!("[{text}]"), 1).unwrap()[0].to_bits(), narrow.to_bits(), "{text}");
        }
        let wide = f64::from_bits(bits);
        if wide.is_finite() {
            let text = float_text(wide);
            assert_eq!(numbers::<f64>(&format!("[{text}]"), 1).unwrap()[0].to_bits(), wide.to_bits(), "{text}");
        }
    }
}

/// The text of a number, often one that is hard to round.
fn hard_number(random: &mut Random) -> String {
    let float = f32::from_bits(random.next() as u32 & 0x7fff_ffff);
    let next = f32::from_bits(float.to_bits().wrapping_add(1));
    let middle = (f64::from(float) + f64::from(next)) / 2.0;
    let middle = if middle.is_finite() { middle } else { 1.5 };
    let near = f64::from_bits(middle.to_bits().wrapping_add(random.below(9)).wrapping_sub(4));
    match random.below(8) {
        0 => format!("{middle}"),
        1 => format!("{middle:e}"),
        2 => format!("{near:e}"),
        3 => format!("{near:.17e}"),
        4 => format!("{:.20}", near % 1000.0),
        5 => format!("{}.{:0>7}", random.below(1000), random.below(10_000_000)),
        6 => format!("{}e{}", random.next(), random.below(60) as i64 - 50),
        _ => format!("0.000{}{}", random.next(), random.next()),
    }
}

#[test]
fn a_float_is_the_nearest_double_cast_even_beside_a_middle() {
    let mut random = Random(2);
    for _ in 0..100_000 {
        let text = hard_number(&mut random);
        let want = text.parse::<f64>().unwrap();
        let got = numbers::<f64>(&format!("[{text}]"), 1).unwrap()[0];
        assert_eq!(got.to_bits(), want.to_bits(), "{text}");
        match numbers::<f32>(&format!("[{text}]"), 1) {
            Ok(got) => assert_eq!(got[0].to_bits(), (want as f32).to_bits(), "{text}"),
            Err(ArrayError::Range { .. }) => assert!((want as f32).is_infinite(), "{text}"),
            Err(other) => panic!("{text}: {other:?}"),
        }
    }
}

/// Most numbers of an array are read in runs; each must have the same value as when read alone.
#[test]
fn a_number_in_a_run_is_the_number_that_it_is_alone() {
    let mut random = Random(6);
    for _ in 0..3_000 {
        let count = random.below(40) as usize;

        let texts: Vec<_> = (0..count)
            .map(|_| match random.below(6) {
                0 if random.below(8) == 0 => hard_number(&mut random),
                0 => f64::from(f32::from_bits(random.next() as u32) % 10.0).to_string().replace("NaN", "0.5"),
                1 => format!("-{}.{}", random.below(10), random.below(1_000_000)),
                2 => format!("{}", random.next() as i64 >> random.below(63)),
                3 => format!("{}.0", random.next() >> (24 + random.below(40))),
                _ => format!("0.{:0>8}", random.below(100_000_000)),
            })
            .collect();
        let mut array = String::from("[");
        for (index, text) in texts.iter().enumerate() {
            let open = if random.below(12) == 0 { "[" } else { "" };
            let close = if open.is_empty() { "" } else { random.pick(&["]", " ]"]) };
            let comma = if index == 0 { "" } else { random.pick(&[",", ",", ", ", " ,", ",  ", ",\n"]) };
            array.push_str(&format!("{comma}{open}{text}{close}"));
        }
        array.push(']');
        let want: Vec<f64> = texts.iter().map(|text| text.parse().unwrap()).collect();
        // An integer has no negative zero, and a double of which no float is the nearest is refused.
        let bits = |values: &[f64]| values.iter().map(|value| (value + 0.0).to_bits()).collect::<Vec<_>>();
        let got = numbers::<f64>(&array, count).unwrap();
        assert_eq!(bits(&got), bits(&want), "{array}");
        match numbers::<f32>(&array, count) {
            Ok(got) => {
                let (got, want): (Vec<_>, Vec<_>) =
                    got.iter().zip(&want).map(|(got, want)| (f64::from(*got), f64::from(*want as f32))).unzip();
                assert_eq!(bits(&got), bits(&want), "{array}");
            }
            Err(ArrayError::Range { index, .. }) => assert!((want[index] as f32).is_infinite(), "{index} of {array}"),
            Err(other) => panic!("{array}: {other:?}"),
        }
        assert!(numbers::<f32>(&array, count + 1).is_err());
        assert!(count == 0 || numbers::<f32>(&array, count - 1).is_err());
    }
}

/// Integers of all sizes in arrays of all shapes, and the same flat.
fn integers(random: &mut Random, depth: usize, flat: &mut Vec<i64>) -> String {
    if depth == 0 || (depth < 4 && random.below(4) == 0) {
        let value = random.next() as i64 >> random.below(64);
        flat.push(value);
        return value.to_string();
    }
    let items: Vec<_> = (0..random.below(5)).map(|_| integers(random, depth - 1, flat)).collect();
    format!("[{}{}]", random.pick(&["", " ", "\n\t"]), items.join(random.pick(&[",", ", ", " ,"])))
}

#[test]
fn integers_are_read_as_serde_json_reads_them() {
    let mut random = Random(5);
    for _ in 0..5_000 {
        let mut flat = Vec::new();
        let text = integers(&mut random, 4, &mut flat);
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
        assert_eq!(numbers::<i64>(&text, flat.len()).as_ref(), Ok(&flat), "{text}");
        let small: Option<Vec<_>> = flat.iter().map(|value| i16::try_from(*value).ok()).collect();
        assert_eq!(numbers::<i16>(&text, flat.len()).ok(), small, "{text}");
        let unsigned: Option<Vec<_>> = flat.iter().map(|value| u64::try_from(*value).ok()).collect();
        assert_eq!(numbers::<u64>(&text, flat.len()).ok(), unsigned, "{text}");
        assert_eq!(numbers::<i64>(&text, flat.len() + 1), Err(ArrayError::TooFew), "{text}");
    }
}

/// A document, mostly well formed.
fn document(random: &mut Random, depth: usize) -> String {
    let scalars = [
        "0",
        "-1",
        "1.5",
        "2e3",
        "1E-7",
        "true",
        "false",
        "null",
        "\"\"",
        "\"a\\n\\u0041\"",
        "\"é\"",
        "[]",
        "{}",
        " 7 ",
        "\"\\ud83d\\ude00\"",
        "12345678901234567890123",
        "-0.0",
    ];
    let broken =
        ["01", "1.", "tru", "\"", "\"\\q\"", "\"\\ud800\"", "[1,]", "{\"a\"}", "", "+1", "1e", "}", "'a'", "\"\t\""];
    if random.below(60) == 0 {
        return random.pick(&broken).to_owned();
    }
    if depth == 0 || random.below(3) == 0 {
        return random.pick(&scalars).to_owned();
    }
    let count = random.below(4);
    let is_object = random.below(2) == 0;
    let items: Vec<_> = (0..count)
        .map(|_| match is_object {
            true => format!("\"{}\":{}", random.pick(&["a", "data", "b\\u0022", ""]), document(random, depth - 1)),
            false => document(random, depth - 1),
        })
        .collect();
    let separator = if random.below(40) == 0 { ",," } else { random.pick(&[",", " , ", ",\n"]) };
    let body = items.join(separator);
    if is_object { format!("{{{body}}}") } else { format!("[ {body}]") }
}

#[test]
fn documents_are_accepted_where_serde_json_accepts_them() {
    let mut random = Random(3);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let text = document(&mut random, 5);
        let want = serde_json::from_str::<serde_json::Value>(&text);
        assert_eq!(exercise(text.as_bytes()), want.is_ok(), "{text}");
        if let Ok(want) = want {
            accepted += 1;
            let document = Document::parse(text.as_bytes(), &[]).unwrap();
            let mut again = Vec::new();
            document::write(document.root(), &mut again);
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&again).unwrap(), want, "{text}");
        }
    }
    assert!((8_000..19_000).contains(&accepted), "{accepted}");
}

#[test]
fn any_bytes_are_read_without_a_panic() {
    let mut random = Random(4);
    for _ in 0..20_000 {
        let mut text = document(&mut random, 4).into_bytes();
        for _ in 0..=random.below(3) {
            if let Some(at) = random.next().checked_rem(text.len() as u64) {
                text[at as usize] = random.next() as u8;
            }
        }
        let ours = exercise(&text);
        let theirs = serde_json::from_slice::<serde_json::Value>(&text).is_ok();
        assert!(ours || !theirs, "{}", String::from_utf8_lossy(&text));
    }
}

#[test]
fn the_seeds_of_the_fuzz_target_and_texts_near_them_are_read_without_a_panic() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/json");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read(file.unwrap().path()).unwrap();
        count += 1;
        let has_words =
            [&b"NaN"[..], b"Inf", b"\xef\xbb\xbf"].iter().any(|word| text.windows(3).any(|window| window == *word));
        let theirs = serde_json::from_slice::<serde_json::Value>(&text).is_ok();
        assert!(exercise(&text) == theirs || has_words || text.starts_with(b"[[[[["), "{count}");
        for at in 0..text.len() {
            let mut near = text.clone();
            near[at] = near[at].wrapping_add((at as u8) | 1);
            exercise(&near);
            exercise(&text[..at]);
        }
    }
    assert!(count >= 5, "{count}");
}

#[test]
fn the_elements_of_an_array_are_counted_without_those_within_them() {
    let check = |text: &str, want| assert_eq!(RawArray::new(text.as_bytes()).element_count(), want, "{text}");
    check("[]", 0);
    check("[ \n]", 0);
    check("[1]", 1);
    check("[ 1 , 2 ]", 2);
    check(r#"["a,]","\"","\\",{"b":[1,2],"c":3},[4,5],[]]"#, 6);
}

#[test]
fn nested_arrays_have_a_shape_if_they_are_regular() {
    let check = |text: &str, want: Option<&[usize]>| {
        assert_eq!(RawArray::new(text.as_bytes()).shape().as_deref(), want, "{text}");
    };
    check("[]", Some(&[0]));
    check("[12, -3.5e1 ,null]", Some(&[3]));
    check("[[1,2],[3,4],[5,6]]", Some(&[3, 2]));
    check("[ [\n[true] , [false]] ]", Some(&[1, 2, 1]));
    check(r#"[["a,]["],["\"]"]]"#, Some(&[2, 1]));
    check("[[],[]]", Some(&[2, 0]));
    for irregular in ["[[1,2],[3]]", "[1,[2]]", "[[1],2]", "[1,[]]", "[[],[1]]", r#"[{"a":1}]"#] {
        check(irregular, None);
    }
    for (text, want) in [("[ [1]]", true), ("[1,[2]]", false), ("[]", false), ("[\"[\"]", false)] {
        assert_eq!(RawArray::new(text.as_bytes()).is_nested(), want, "{text}");
    }
}
