//! The fuzz target `suggest`: any bytes as the syntax tree of a model.py are interpreted or refused. A panic is a finding, and so is
//! a complete proposal that the reader of lists refuses.

use base::tensor::Datatype;

use crate::list::StepList;
use crate::suggest::{SuggestModel, SuggestTensor, suggest};

/// Proposes steps for any bytes; returns true if they are a syntax tree.
pub fn exercise(bytes: &[u8]) -> bool {
    let Ok(tree) = std::str::from_utf8(bytes) else { return false };
    let tensor = |name: &str, datatype, dims: &[i64]| SuggestTensor {
        name: name.to_owned(),
        datatype,
        dims: dims.to_vec(),
        reshape: None,
        is_optional: false,
    };
    let read_file = |name: &str, _| match name {
        "labels.txt" => Ok(b"cat\ndog\n".to_vec()),
        _ => Err("no such file".to_owned()),
    };
    let model = SuggestModel {
        name: "m",
        version: "1",
        rows_max: 8,
        inputs: vec![tensor("x", Datatype::Fp32, &[-1]), tensor("image", Datatype::Bytes, &[1])],
        outputs: vec![tensor("y", Datatype::Fp32, &[-1])],
        parameters: [("k".to_owned(), "3".to_owned())].into(),
        read_file: &read_file,
        find_other: &|name| Err(format!("there is no model '{name}'")),
    };
    let Ok(suggestion) = suggest(tree, &model) else { return false };
    assert!(!suggestion.report().is_empty(), "a proposal says something");
    if suggestion.is_complete() {
        assert!(StepList::read(&suggestion.steps_json(), &read_file).is_ok(), "a complete proposal can be read");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::fuzz::tests::replay;

    #[test]
    fn trees_and_texts_near_them_pass() {
        replay("fuzz/corpus/suggest", exercise, 0);
    }
}
