use super::*;
use half::{bf16, f16};

/// A file of a header and `size` bytes of data.
fn file(header: &str, size: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![1; size]].concat()
}

fn refusal(bytes: &[u8]) -> String {
    SafeTensors::read(&[("model.safetensors", bytes)]).unwrap_err().text().to_owned()
}

fn entry(shape: &str, begin: u64, end: u64) -> String {
    format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

#[test]
fn a_hostile_header_is_refused_with_its_reason() {
    let check = |bytes: &[u8], want: &str| assert_eq!(refusal(bytes), format!("model.safetensors: {want}"));
    check(b"1234567", "it is shorter than the 8 bytes before its header");
    check(&u64::MAX.to_le_bytes(), "its header has 18446744073709551615 bytes, and at most 8388608 are read");
    check(&file(&" ".repeat(8 << 20), 0)[..100], "its header has 8388608 bytes, and the file ends after 92");
    check(&file(&" ".repeat(100 << 20), 0), "its header has 104857600 bytes, and at most 8388608 are read");
    check(
        &file(&"[".repeat(1000), 0),
        "its header is not JSON: JSON nesting depth exceeds maximum allowed limit (100)",
    );
    check(&file("[1]", 0), "its header is not a JSON object");
    let check = |entries: &str, size: usize, want: &str| check(&file(&format!("{{{entries}}}"), size), want);
    check(r#""a":{}"#, 0, "tensor 'a': it has no 'dtype'");
    check(r#""a":{"dtype":"F99"}"#, 0, "tensor 'a': its dtype 'F99' is unknown");
    let shape = "tensor 'a': its 'shape' is not a short list of sizes";
    check(&format!(r#""a":{}"#, entry("[-1]", 0, 4)), 4, shape);
    check(&format!(r#""a":{}"#, entry("[1,1,1,1,1,1,1,1,1]", 0, 4)), 4, shape);
    check(r#""a":{"dtype":"F32","shape":[]}"#, 4, "tensor 'a': its 'data_offsets' are not two numbers");
    let all = u64::MAX;
    check(
        &format!(r#""a":{}"#, entry(&format!("[{all},2]"), 0, 4)),
        4,
        "tensor 'a': its shape [18446744073709551615, 2] overflows",
    );
    check(
        &format!(r#""a":{}"#, entry("[2]", 0, 4)),
        4,
        "tensor 'a': its data_offsets 0 to 4 are not the 8 bytes that shape [2] needs",
    );
    check(
        &format!(r#""a":{}"#, entry("[1]", 4, 0)),
        4,
        "tensor 'a': its data_offsets 4 to 0 are not the 4 bytes that shape [1] needs",
    );
    let end = format!("tensor 'a': its data_offsets {} to {all} overflow", all - 4);
    check(&format!(r#""a":{}"#, entry("[1]", all - 4, all)), 4, &end);
    check(&format!(r#""a":{}"#, entry("[2]", 0, 8)), 4, "tensor 'a' ends at 8, the data at 4");
    check(
        &format!(r#""a":{},"b":{}"#, entry("[2]", 0, 8), entry("[1]", 4, 8)),
        8,
        "tensor 'b' begins at 4, expected 8: no overlap, no hole",
    );
    check(&format!(r#""a":{}"#, entry("[1]", 4, 8)), 8, "tensor 'a' begins at 4, expected 0: no overlap, no hole");
    check(&format!(r#""a":{},"a":{}"#, entry("[1]", 0, 4), entry("[1]", 4, 8)), 8, "tensor 'a' is there twice");
    check(&format!(r#""a":{}"#, entry("[1]", 0, 4)), 9, "5 bytes after the last tensor belong to no tensor");
    let many = (0..=TENSORS_MAX).map(|at| format!(r#""{at}":{}"#, entry("[0]", 0, 0))).collect::<Vec<_>>().join(",");
    check(&many, 0, "it has more than 16384 tensors");
}

#[test]
fn a_tensor_may_be_in_one_of_several_files_only() {
    let one = file(&format!(r#"{{"__metadata__":{{"format":"pt"}},"a":{}}}"#, entry("[1]", 0, 4)), 4);
    let other = file(&format!(r#"{{"b":{},"empty":{}}}   "#, entry("[]", 0, 4), entry("[0,7]", 0, 0)), 4);
    let weights = SafeTensors::read(&[("1.safetensors", &one), ("2.safetensors", &other)]).unwrap();
    assert_eq!(
        weights.iter().map(|(name, tensor)| (name, tensor.file)).collect::<Vec<_>>(),
        [("a", "1.safetensors"), ("b", "2.safetensors"), ("empty", "2.safetensors")]
    );
    let twice = SafeTensors::read(&[("1.safetensors", &one), ("2.safetensors", &one)]).unwrap_err();
    assert_eq!(twice.text(), "2.safetensors: tensor 'a' is also in 1.safetensors; each tensor is in one file");
    let many = vec![("a.safetensors", &one[..]); 65];
    assert_eq!(SafeTensors::read(&many).unwrap_err().text(), "65 files of weights; at most 64 are read");
}

#[test]
fn an_index_names_files_of_its_own_folder() {
    let check = |text: &str, want: &str| {
        let error = indexed_files(text.as_bytes()).unwrap_err();
        assert_eq!(error.text(), format!("model.safetensors.index.json: {want}"));
    };
    check("{", "not JSON: Missing a name for object member. at 1");
    check("{}", "it has no 'weight_map'");
    check(r#"{"weight_map":{}}"#, "it names no file");
    for name in ["../a.safetensors", "/a.safetensors", ".safetensors", "a.bin", "a\\\\b.safetensors"] {
        let want = "tensor 'a' is not in a file NAME.safetensors of the same folder";
        check(&format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#), want);
    }
    let many: Vec<_> = (0..65).map(|at| format!(r#""{at}":"{at}.safetensors""#)).collect();
    check(&format!(r#"{{"weight_map":{{{}}}}}"#, many.join(",")), "it names more than 64 files");
    check(&" ".repeat(CONFIG_SIZE_MAX + 1), "it has 4194305 bytes; at most 4194304 are read");
}

#[test]
fn columns_are_rows_of_each_datatype() {
    let values = [1.5_f32, -2.0, 0.25, 3.0, 0.0, -0.5];
    let halves: Vec<u8> = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
    let brains: Vec<u8> = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
    let floats: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for (element, bytes) in [(WeightType::Half, halves), (WeightType::BrainFloat, brains), (WeightType::Float, floats)]
    {
        let view = WeightView { element, bytes: &bytes };
        assert_eq!(view.floats(), values);
        assert_eq!(view.rows(1, 1, 3).floats(), [3.0, 0.0, -0.5]);
        let mut out = [[0; 4]; 6];
        view.write_columns(3, &mut out);
        assert_eq!(out.map(f32::from_le_bytes), [1.5, 3.0, -2.0, 0.0, 0.25, -0.5]);
    }
}
