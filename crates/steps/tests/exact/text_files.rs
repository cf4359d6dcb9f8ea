//! Malformed `tokenizer.json` files: each is refused, or a tokenizer that answers or refuses requests. None
//! may end the process, by a panic, an abort or a full stack.

use std::path::Path;
use std::time::{Duration, Instant};

use base::tensor::Datatype;
use serde_json::{Value, json};
use steps::StepList;
use steps::tensors::{of_numbers, of_strings};

use crate::{is_whole, played};

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % end as u64) as usize
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

#[test]
fn malformed_files_end_no_process() {
    let Some(folder) = played("text.py", &["40"]) else { return };
    let names = ["wordpiece", "wordpiece_cased", "bytelevel", "unigram", "fallback"];
    let files: Vec<Value> = names
        .iter()
        .map(|name| {
            serde_json::from_slice(&std::fs::read(folder.path().join(format!("{name}.json"))).unwrap()).unwrap()
        })
        .collect();
    let parts = parts();
    let mut random = Random(11);
    let count = if is_whole() { 20_000 } else { 400 };
    let (mut refused, mut slowest) = (0, Duration::ZERO);
    for number in 0..count {
        let mut file = random.pick(&files);
        for _ in 0..=random.below(2) {
            mutate(&mut file, &parts, &mut random);
        }
        let mut bytes = serde_json::to_vec(&file).unwrap();
        match random.below(20) {
            0 => bytes.truncate(random.below(bytes.len())),
            1 => {
                let place = random.below(bytes.len());
                bytes[place] = random.pick(b"\0\"{[]}:,9\xff");
            }
            _ => {}
        }
        let start = Instant::now();
        refused += usize::from(!try_out(&bytes));
        slowest = slowest.max(start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(20), "file {number} takes {:?}", start.elapsed());
    }
    println!("{refused} of {count} files are refused; the slowest takes {slowest:?}");
    assert!((count / 10..count).contains(&refused), "some are refused, and some are not");
    others_end_no_process(folder.path());
}

/// Files with a single known fault.
fn others_end_no_process(folder: &Path) {
    let read = |name: &str| -> Value { serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap() };
    // Issue 2094 of the crate: a merge that is longer than every token.
    let mut file = read("bytelevel.json");
    file["model"]["merges"] = json!([["a".repeat(3000), "b"]]);
    assert!(!try_out(&serde_json::to_vec(&file).unwrap()));
    // Deep nesting, in JSON and in a regular expression.
    for depth in [100, 10_000, 1_000_000] {
        assert!(!try_out("[".repeat(depth).as_bytes()));
        let mut file = read("bytelevel.json");
        let pattern = "(".repeat(depth) + &")".repeat(depth);
        file["pre_tokenizer"] =
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        try_out(&serde_json::to_vec(&file).unwrap());
    }
}

/// Reads the file and uses it. Returns true if it is accepted.
fn try_out(file: &[u8]) -> bool {
    let read = |_: &str, _| Ok(file.to_vec());
    let steps = r#"{"steps": [{"step": "tokenize", "inputs": {"text": "text", "pair": "pair"}, "file": "t", PARAMETERS,
        "outputs": {"ids": "ids", "offsets": "offsets"}}, {"step": "detokenize", "input": "ids", "output": "back", "file": "t"}]}"#;
    let mut is_accepted = false;
    let texts: &[&str] =
        &["The quick ca\u{301}fé, 中文!", "", " \n", "[MASK] <s> a\u{0}b", &"long ".repeat(50), &"ab".repeat(200)];
    let text = of_strings(&[texts.len()], texts);
    for parameters in [
        r#""padding": "file", "truncation": "file""#,
        r#""pad_id": 0, "max_length": 12"#,
        r#""pad_id": 3, "truncation": "only_first", "max_length": 100, "add_special_tokens": false"#,
    ] {
        let Ok(list) = StepList::read(&steps.replace("PARAMETERS", parameters), &read) else { continue };
        is_accepted = true;
        let _ = list.run(|name| (name == "text").then(|| text.clone()), &["ids", "offsets", "back"]);
        let _ = list.run(|_| Some(text.clone()), &["ids", "offsets", "back"]);
        for row in texts {
            let _ = list.run(|name| (name == "text").then(|| of_strings(&[1], [row])), &["back"]);
        }
    }
    let back = r#"{"steps": [{"step": "detokenize", "input": "ids", "output": "back", "file": "t", "skip_special_tokens": false}]}"#;
    if let Ok(list) = StepList::read(back, &read) {
        let ids = of_numbers(Datatype::Int64, &[40, 20], (0..800_i64).collect());
        let _ = list.run(|_| Some(ids.clone()), &["back"]);
    }
    is_accepted
}

/// Changes one value somewhere.
fn mutate(file: &mut Value, parts: &[(&str, Value)], random: &mut Random) {
    if random.below(4) == 0 && file.is_object() {
        let (name, part) = random.pick(parts);
        file[name] = part;
        return;
    }
    let mut value = file;
    loop {
        let length = match value {
            Value::Array(list) => list.len(),
            Value::Object(members) => members.len(),
            _ => 0,
        };
        if length == 0 || random.below(6) == 0 {
            return change(value, random);
        }
        let index = random.below(length);
        value = match value {
            Value::Array(list) => &mut list[index],
            Value::Object(members) => members.values_mut().nth(index).unwrap(),
            _ => return,
        };
    }
}

fn change(value: &mut Value, random: &mut Random) {
    let odd = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!("x"),
        json!("\u{10ffff}"),
        json!([]),
        json!({}),
        json!([[[[[[["deep"]]]]]]]),
    ];
    match (random.below(3), &mut *value) {
        (0, Value::Array(list)) if !list.is_empty() => {
            let (from, to) = (random.below(list.len()), random.below(list.len()));
            match random.below(3) {
                0 => drop(list.remove(from)),
                1 => list.swap(from, to),
                _ => list.push(list[from].clone()),
            }
        }
        (0, Value::Object(members)) if !members.is_empty() => {
            let name = members.keys().nth(random.below(members.len())).unwrap().clone();
            let removed = members.remove(&name).unwrap();
            if random.below(3) == 0 {
                members.insert(format!("{name}x"), removed);
            }
        }
        (1, Value::Number(number)) if number.is_u64() => {
            let by = random.pick(&[1, 2, 1000, u64::from(u32::MAX), 1 << 40]);
            *value = json!(number.as_u64().unwrap().wrapping_add(by));
        }
        (1, Value::String(text)) => match random.below(3) {
            0 => drop(text.pop()),
            1 => text.push_str(&random.pick(&["\u{e9}".to_owned(), "y".repeat(5000), "\0".to_owned(), "(".to_owned()])),
            _ => text.insert(0, '#'),
        },
        _ => *value = random.pick(&odd),
    }
}

/// Parts of other tokenizers, with values at the edge.
fn parts() -> Vec<(&'static str, Value)> {
    let many = usize::MAX;
    let split = |pattern: Value, behavior: &str| json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": true});
    let template = |special: Value| {
        json!({"type": "TemplateProcessing", "special_tokens": special,
            "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 9}}],
            "pair": [{"Sequence": {"id": "B", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]})
    };
    vec![
        ("normalizer", json!(null)),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "/////////////////////w=="})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "CAAAAP////8BAgMEYWJjAA=="})),
        ("normalizer", json!({"type": "Replace", "pattern": {"String": ""}, "content": "xx"})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "(a+)+$|"}, "content": ""})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""})),
        ("normalizer", json!({"type": "Prepend", "prepend": ""})),
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Nmt"}]}),
        ),
        ("normalizer", json!({"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "ByteLevel"}]})),
        ("normalizer", json!({"type": "Strip", "strip_left": true, "strip_right": true})),
        (
            "normalizer",
            json!({"type": "BertNormalizer", "clean_text": false, "handle_chinese_chars": false, "strip_accents": true, "lowercase": false}),
        ),
        ("pre_tokenizer", json!(null)),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": many})),
        ("pre_tokenizer", split(json!({"Regex": ""}), "Removed")),
        ("pre_tokenizer", split(json!({"Regex": "(?=a)|(?<=b)"}), "MergedWithNext")),
        ("pre_tokenizer", split(json!({"Regex": "(a|b|ab)*c"}), "MergedWithPrevious")),
        ("pre_tokenizer", split(json!({"String": ""}), "Contiguous")),
        ("pre_tokenizer", json!({"type": "UnicodeScripts"})),
        ("pre_tokenizer", json!({"type": "Digits", "individual_digits": true})),
        ("pre_tokenizer", json!({"type": "CharDelimiterSplit", "delimiter": " "})),
        ("pre_tokenizer", json!({"type": "Metaspace", "replacement": "", "prepend_scheme": "first", "split": true})),
        ("post_processor", json!(null)),
        ("post_processor", template(json!({}))),
        ("post_processor", template(json!({"[X]": {"id": "[X]", "ids": [], "tokens": []}}))),
        ("post_processor", template(json!({"[X]": {"id": "[X]", "ids": [1, 2], "tokens": ["a"]}}))),
        ("post_processor", template(json!({"[X]": {"id": "[X]", "ids": vec![7; 1000], "tokens": vec!["a"; 1000]}}))),
        (
            "post_processor",
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        ),
        ("post_processor", json!({"type": "Sequence", "processors": []})),
        ("decoder", json!({"type": "Strip", "content": "a", "start": many, "stop": many})),
        ("decoder", json!({"type": "Strip", "content": "", "start": 3, "stop": 2})),
        ("decoder", json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true})),
        ("decoder", json!({"type": "Replace", "pattern": {"String": ""}, "content": "yy"})),
        (
            "decoder",
            json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "ByteLevel"}]}),
        ),
        ("decoder", json!({"type": "WordPiece", "prefix": "", "cleanup": true})),
        ("truncation", json!({"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5})),
        ("truncation", json!({"direction": "Left", "max_length": 0, "strategy": "OnlyFirst", "stride": 0})),
        ("truncation", json!({"direction": "Right", "max_length": many, "strategy": "OnlySecond", "stride": many})),
        (
            "padding",
            json!({"strategy": {"Fixed": many}, "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0, "pad_token": ""}),
        ),
        (
            "padding",
            json!({"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": many, "pad_id": 0, "pad_type_id": 0, "pad_token": ""}),
        ),
        ("added_tokens", json!([])),
        (
            "added_tokens",
            json!([{"id": u32::MAX, "content": "a", "single_word": true, "lstrip": true, "rstrip": true, "normalized": true, "special": true}]),
        ),
        (
            "added_tokens",
            json!([{"id": 0, "content": " ", "single_word": false, "lstrip": true, "rstrip": true, "normalized": false, "special": false}]),
        ),
    ]
}
