//! A tokenizer for tests.

/// A small tokenizer of BERT's parts, with these members in place of its own.
pub fn tokenizer_json(others: &str) -> String {
    let vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "##s", "a", "b", ",", "\u{4e2d}", "cafe"];
    let vocabulary: Vec<_> = vocabulary.iter().enumerate().map(|(id, token)| format!("\"{token}\": {id}")).collect();
    let added = |id: usize, token: &str| {
        format!(
            r#"{{"id": {id}, "content": "{token}", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}}"#
        )
    };
    let added = [added(0, "[PAD]"), added(2, "[CLS]"), added(3, "[SEP]")].join(", ");
    format!(
        r###"{{"version": "1.0", {others} "added_tokens": [{added}],
        "normalizer": {{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
        "lowercase": true}}, "pre_tokenizer": {{"type": "BertPreTokenizer"}},
        "post_processor": {{"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}}, "decoder": null,
        "model": {{"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 10, "vocab": {{{}}}}}}}"###,
        vocabulary.join(", ")
    )
}
