use super::*;
use base::error::Code;

const BERT: &str = r#"{"model_type":"bert","vocab_size":9,"hidden_size":4,"num_hidden_layers":1,"num_attention_heads":2,
    "intermediate_size":8,"max_position_embeddings":5}"#;

/// A configuration with fields put before those of BERT's, which then do not count.
fn with(fields: &str) -> Result<TransformerConfig, Error> {
    TransformerConfig::parse(BERT.replacen('{', &format!("{{{fields},"), 1).as_bytes())
}

#[test]
fn a_size_out_of_bounds_is_refused_by_its_name() {
    let check = |fields: &str, want: &str| {
        let error = with(fields).unwrap_err();
        assert_eq!((error.code(), error.text()), (Code::InvalidArgument, format!("config.json: {want}").as_str()));
    };
    check(r#""hidden_size":0"#, "'hidden_size' is 0, expected a size from 1 to 65536");
    check(r#""hidden_size":"4""#, "'hidden_size' is '4', expected a size from 1 to 65536");
    check(r#""hidden_size":1e3"#, "'hidden_size' is 1e3, expected a size from 1 to 65536");
    check(r#""num_hidden_layers":257"#, "'num_hidden_layers' is 257, expected a size from 1 to 256");
    check(r#""num_attention_heads":3"#, "'hidden_size' 4 is not a multiple of 'num_attention_heads' 3");
    check(r#""num_attention_heads":1025"#, "'num_attention_heads' is 1025, expected a size from 1 to 1024");
    check(r#""vocab_size":99999999"#, "'vocab_size' is 99999999, expected a size from 1 to 4194304");
    check(r#""max_position_embeddings":[1]"#, "'max_position_embeddings' is a list, expected a size from 1 to 131072");
    check(r#""type_vocab_size":-1"#, "'type_vocab_size' is -1, expected a number from 0 to 4194304");
    check(r#""layer_norm_eps":0"#, "'layer_norm_eps' is 0, expected a number above 0");
    check(r#""tie_word_embeddings":1"#, "'tie_word_embeddings' is 1, expected true or false");
    check(r#""hidden_act":{}"#, "'hidden_act' is an object, expected a text");
    check(r#""id2label":{}"#, "'id2label' is empty, expected the names of the classes");
    check(r#""id2label":true"#, "'id2label' is true, expected an object");
    check(r#""num_labels":0"#, "'num_labels' is 0, expected a size from 1 to 1048576");
    check(r#""architectures":[7]"#, "'architectures' is 7, expected names of classes");
    check(
        r#""architectures":["BertForQuestionAnswering"],"num_labels":3"#,
        "3 labels; question answering has 2, the begin and the end",
    );
    check(
        r#""model_type":"roberta","pad_token_id":4"#,
        "'max_position_embeddings' 5 leaves no position behind 'pad_token_id' 4",
    );
    check(r#""model_type":"modernbert","hidden_size":6"#, "heads of width 3 cannot be rotated: expected an even width");
    check(
        r#""model_type":"modernbert","hidden_size":65536,"max_position_embeddings":131072"#,
        "tables by 'max_position_embeddings' 131072 would have 4294967296 elements; at most 16777216 are written",
    );
    check(
        r#""model_type":"modernbert","layer_types":["full_attention","other"]"#,
        "'layer_types' is expected to be full_attention or sliding_attention for each of 1 layers",
    );
    assert_eq!(
        TransformerConfig::parse(br#"{"model_type":"bert"}"#).unwrap_err().text(),
        "config.json has no 'hidden_size'"
    );
}

#[test]
fn a_text_that_is_no_configuration_is_refused() {
    let check = |text: &[u8], want: &str| assert_eq!(TransformerConfig::parse(text).unwrap_err().text(), want);
    check(b"", "config.json is not JSON: The document is empty. at 0");
    check(b"[]", "config.json is not a JSON object");
    check(&vec![b' '; CONFIG_LARGE], "config.json has 4194305 bytes; at most 4194304 are read");
}

const CONFIG_LARGE: usize = crate::limits::CONFIG_SIZE_MAX + 1;

#[test]
fn what_computes_something_else_is_refused_by_its_name() {
    let check = |fields: &str, want: &str| {
        let error = with(fields).unwrap_err();
        assert_eq!(error.code(), Code::Unsupported, "{}", error.text());
        assert!(error.text().starts_with(&format!("config.json: {want}")), "{}", error.text());
    };
    let only = "and graphs are written only if it is";
    check(r#""model_type":"t5""#, "'model_type' is 't5'; graphs are written for bert, camembert,");
    check(r#""auto_map":{"AutoModel":"a.B"}"#, &format!("'auto_map' is an object, {only} absent"));
    check(r#""quantization_config":{"bits":4}"#, &format!("'quantization_config' is an object, {only} absent"));
    check(r#""pruned_heads":{"0":[1]}"#, &format!("'pruned_heads' is an object, {only} absent"));
    check(r#""is_decoder":true"#, &format!("'is_decoder' is true, {only} false or absent"));
    check(r#""is_encoder_decoder":true"#, &format!("'is_encoder_decoder' is true, {only} false or absent"));
    check(r#""add_cross_attention":true"#, &format!("'add_cross_attention' is true, {only} false or absent"));
    check(
        r#""position_embedding_type":"relative_key""#,
        &format!("'position_embedding_type' is 'relative_key', {only} 'absolute' or absent"),
    );
    check(r#""hidden_act":"mish""#, "'hidden_act' is 'mish', expected gelu, gelu_new,");
    check(
        r#""architectures":["BertForMultipleChoice"]"#,
        "'architectures' is 'BertForMultipleChoice'; graphs are written",
    );
    check(
        r#""model_type":"modernbert","classifier_pooling":"max""#,
        "'classifier_pooling' is 'max', expected 'cls' or 'mean'",
    );
    check(
        r#""model_type":"modernbert","rope_scaling":{"type":"yarn"}"#,
        "'rope_scaling' is an object, expected no scaling",
    );
    check(
        r#""model_type":"modernbert","rope_parameters":{"full_attention":{"rope_type":"yarn"}}"#,
        "'rope_type' of 'full_attention' is 'yarn', expected 'default'",
    );
    check(r#""model_type":"deberta-v2""#, "'relative_attention' is expected to be true");
    let deberta = r#""model_type":"deberta-v2","relative_attention":true"#;
    check(&format!(r#"{deberta},"conv_kernel_size":3"#), "'conv_kernel_size' is 3, expected 0 or absent");
    let unknown = with(&format!(r#"{deberta},"pos_att_type":"c2p|p2p""#)).unwrap_err();
    assert_eq!(unknown.text(), "config.json: 'pos_att_type' is 'c2p|p2p', expected c2p and p2c");
}

#[test]
fn fields_of_no_consequence_are_taken() {
    let config = with(r#""pruned_heads":{},"position_embedding_type":"absolute","is_decoder":false,"auto_map":null"#);
    assert_eq!(config.unwrap(), TransformerConfig::parse(BERT.as_bytes()).unwrap());
}

#[test]
fn the_head_is_that_of_the_first_class() {
    let check = |family: &str, class: &str, want| {
        let config =
            with(&format!(r#""model_type":"{family}","architectures":["{class}"],"embedding_size":2"#)).unwrap();
        assert_eq!(config.head(), want, "{class}");
    };
    check("bert", "BertModel", ModelHead::Encoder);
    check("bert", "BertForPreTraining", ModelHead::MaskedLm);
    check("electra", "ElectraForPreTraining", ModelHead::Encoder);
    check("mpnet", "MPNetForMaskedLM", ModelHead::MaskedLm);
    check("xlm-roberta", "XLMRobertaForSequenceClassification", ModelHead::SequenceClassification);
    assert_eq!(with(r#""architectures":[]"#).unwrap().head(), ModelHead::Encoder);
}

#[test]
fn modernbert_is_read_as_both_releases_write_it() {
    let read = |fields: &str| {
        let all = format!(r#""model_type":"modernbert","num_hidden_layers":4,{fields}"#);
        let own = with(&all).unwrap().rotary().unwrap().clone();
        (own.global_theta, own.local_theta, own.is_local, own.reach)
    };
    let every = |n: usize| (0..4).map(|layer| layer % n != 0).collect::<Vec<_>>();
    assert_eq!(read(r#""norm_bias":false"#), (160_000.0, 10_000.0, every(3), 64));
    let old = r#""global_rope_theta":5.0,"local_rope_theta":null,"global_attn_every_n_layers":2,"local_attention":8"#;
    assert_eq!(read(old), (5.0, 5.0, every(2), 4));
    let new = r#""rope_parameters":{"full_attention":{"rope_theta":7.0},"sliding_attention":{"rope_type":"default"}},
        "layer_types":["full_attention","sliding_attention","full_attention","sliding_attention"]"#;
    assert_eq!(read(new), (7.0, 10_000.0, every(2), 64));
}
