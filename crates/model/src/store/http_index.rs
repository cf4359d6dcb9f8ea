//! The index of a repository behind HTTP, which cannot be listed: `index.json` beside the models, as in
//! `{"objects": [{"path": "m/1/model.onnx", "size": 12, "sha256": "…"}]}`.

use crate::store::StoreObject;
use base::error::Error;
use wire::json::{Document, ValueKind};

/// The name of the index.
pub const INDEX_NAME: &str = "index.json";

/// Reads the objects of an index. Their paths are checked later, in the comparison with the mirror.
///
/// # Errors
/// `InvalidArgument` with the faulty object.
pub fn decode(text: &[u8]) -> Result<Vec<StoreObject>, Error> {
    let wrong = |why: String| Error::invalid(format!("its {INDEX_NAME} cannot be read: {why}"));
    let document = Document::parse(text, &[]).map_err(|error| wrong(error.to_string()))?;
    let objects = document.root().get("objects").filter(|objects| matches!(objects.kind(), ValueKind::Array));
    let objects = objects.ok_or_else(|| wrong("expected an object with an array 'objects'".to_owned()))?;
    let mut all = Vec::new();
    for (at, object) in objects.elements().enumerate() {
        let text = |name: &str| object.get(name).and_then(|value| value.as_str()).map(str::to_owned);
        let size = object.get("size").and_then(|size| size.as_u64());
        let sha256 = text("sha256").map(|sum| sum.to_ascii_lowercase());
        let sha256 = sha256.filter(|sum| sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let (Some(path), Some(size), Some(sha256)) = (text("path"), size, sha256) else {
            return Err(wrong(format!("objects[{at}]: expected 'path', 'size' and 'sha256' of 64 hexadecimal digits")));
        };
        all.push(StoreObject { path, size, tag: sha256.clone(), sha256 });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_lists_objects_with_their_checksums() {
        let sum = "AB".repeat(32);
        let text = format!(r#"{{"objects": [{{"path": "m/1/a", "size": 7, "sha256": "{sum}"}}], "more": 1}}"#);
        let want = StoreObject { path: "m/1/a".into(), size: 7, tag: sum.to_lowercase(), sha256: sum.to_lowercase() };
        assert_eq!(decode(text.as_bytes()).unwrap(), [want]);
        assert_eq!(decode(br#"{"objects": []}"#).unwrap(), []);
    }

    #[test]
    fn what_an_index_lacks_is_said() {
        for (text, want) in [
            ("", "cannot be read"),
            ("[]", "expected an object with an array 'objects'"),
            (r#"{"objects": {}}"#, "expected an object with an array 'objects'"),
            (r#"{"objects": [{"path": "a", "size": 1}]}"#, "objects[0]: expected 'path', 'size' and 'sha256'"),
            (r#"{"objects": [{"path": "a", "size": -1, "sha256": "00"}]}"#, "objects[0]"),
        ] {
            let error = decode(text.as_bytes()).unwrap_err();
            assert!(error.text().contains(want), "{text}: {error}");
        }
    }
}
