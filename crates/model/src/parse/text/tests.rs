use prost_reflect::DescriptorPool;
use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

use super::*;
use wire::proto::inference::ModelConfig;
use wire::proto::inference::model_config::SchedulingChoice;

fn decode(text: &str) -> ModelConfig {
    let config = ConfigText::decode(Notation::Text, text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
    config.message.transcode_to().unwrap()
}

#[test]
fn all_notations_of_a_list_read_the_same() {
    let want = decode("input { name: 'a' dims: 1 dims: 2 } input { name: 'b' }");
    for text in [
        "input [ { name: 'a' dims: [ 1, 2 ] }, { name: 'b' } ]",
        "input: [ { name: 'a', dims: [ 1, 2 ] }, { name: 'b' } ]",
        "input[{name:'a';dims:[1,2];},{name:'b'}]",
        "input < name: \"a\" dims: 1, dims: 2 > input: < name: 'b' >",
        "input {\r\n  name: 'a' # the first\r\n  dims: [ 1, # one\n 2 ]\n}\n input { name: \"\" 'b' \"\" }",
    ] {
        assert_eq!(decode(text), want, "{text}");
    }
}

#[test]
fn scalars_of_every_kind_are_read() {
    let config = decode(
        "max_batch_size: 0x10 name: 'a\\x62' \"c\" platform: 'é' input [ { data_type: TYPE_FP32 optional: true }, \
         { data_type: 2 optional: False dims: [ -1, 010 ] } ] sequence_batching { direct { \
         max_queue_delay_microseconds: 18446744073709551615 minimum_slot_utilization: .5f } }",
    );
    assert_eq!((config.max_batch_size, config.name.as_str(), config.platform.as_str()), (16, "abc", "é"));
    let inputs: Vec<_> = config.input.iter().map(|input| (input.data_type, input.optional)).collect();
    assert_eq!(inputs, [(11, true), (2, false)]);
    assert_eq!(config.input[1].dims, [-1, 8]);
    let Some(SchedulingChoice::SequenceBatching(batching)) = config.scheduling_choice else { panic!() };
    let text = format!("{:?}", batching.strategy_choice);
    assert!(text.contains("18446744073709551615") && text.contains("0.5"), "{text}");
    for (text, want) in [("1", 1.0), ("-1.5e3", -1500.0), ("inf", f64::INFINITY), ("-infinity", f64::NEG_INFINITY)] {
        let text = format!("model_metrics {{ metric_control {{ histogram_options {{ buckets: {text} }} }} }}");
        let got = format!("{:?}", decode(&text).model_metrics);
        assert!(got.contains(&format!("[{want:?}]")), "{text}: {got}");
    }
}

#[test]
fn an_empty_text_and_empty_lists_set_nothing() {
    for text in ["", "\u{feff}", "# nothing\n", "input: [ ] output [] metric_tags []"] {
        assert_eq!(decode(text), ModelConfig::default(), "{text:?}");
    }
}

#[test]
fn errors_are_one_line_with_the_position_in_the_users_text() {
    let check = |text: &str, want: &str| {
        let got = ConfigText::decode(Notation::Text, text.as_bytes()).unwrap_err().to_string();
        assert_eq!(got.strip_prefix("config.pbtxt:"), Some(want), "{text}");
    };
    let enumeration = "expected one of KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL";
    check("foo: 1", r#"1:1: message type "inference.ModelConfig" has no field named "foo""#);
    check(
        "input [\n  {\n    nme: \"x\"\n  }\n]",
        r#"3:5: message type "inference.ModelInput" has no field named "nme""#,
    );
    check("name: 'é' bar: 1", r#"1:11: message type "inference.ModelConfig" has no field named "bar""#);
    check("input [ { name: 'x' } ] # c\ninput [ { dims: x } ]", "2:17: expected an integer, got 'x'");
    check(
        "instance_group { kind: KIND_TPU }",
        &format!("1:24: unknown value \"KIND_TPU\" for \"kind\", {enumeration}"),
    );
    let datatype = |name: &str, near: &str| {
        let text = format!("input {{ data_type: {name} }}");
        let got = ConfigText::decode(Notation::Text, text.as_bytes()).unwrap_err().to_string();
        let want = format!("unknown value \"{name}\" for \"data_type\", {near}expected one of TYPE_INVALID, ");
        assert!(got.contains(&want), "{got}");
    };
    datatype("float32", "did you mean TYPE_FP32? ");
    datatype("INT64", "did you mean TYPE_INT64? ");
    datatype("string", "did you mean TYPE_STRING? ");
    datatype("TYPE_BYTES", "did you mean TYPE_STRING? ");
    datatype("complex64", "");
    check("instance_group { kind: 9 }", &format!("1:24: unknown value \"9\" for \"kind\", {enumeration}"));
    check("max_batch_size: 2147483648", "1:17: integer out of range (2147483648)");
    check("max_batch_size: -2147483649", "1:17: integer out of range (-2147483649)");
    check("optimization { gather_kernel_buffer_threshold: -1 }", "1:48: integer out of range (-1)");
    check("max_batch_size: 1.5", "1:17: expected an integer, got '1.5'");
    check("max_batch_size: 08", "1:17: expected an integer, got '08'");
    check("max_batch_size: 0x", "1:17: expected an integer, got '0x'");
    check("max_batch_size: 12abc", "1:17: expected an integer, got '12abc'");
    check("max_batch_size: \"8\"", "1:17: expected an integer, got \"8\"");
    check("max_batch_size 8", "1:16: expected ':' after \"max_batch_size\", got '8'");
    check("max_batch_size:", "1:16: expected an integer, got the end of the file");
    check("max_batch_size: [ 8 ]", "1:17: \"max_batch_size\" takes one value, not a list");
    check("name: abc", "1:7: expected a string, got 'abc'");
    check("name: 'a\\q'", "1:9: invalid escape sequence in string literal");
    check("name: '\\xff'", "1:7: the value of \"name\" is not UTF-8");
    check("name: \"abc\nd\"", "1:7: string literals cannot cross line boundaries; close the quote on its line");
    check("name: 'abc", "1:7: this string is not closed before the end of the file");
    check("name: 'a'\nname: 'b'", "2:1: non-repeated field \"name\" is specified multiple times");
    check(
        "max_batch_size: 0 max_batch_size: 4",
        "1:19: non-repeated field \"max_batch_size\" is specified multiple times",
    );
    check(
        "version_policy { all { } latest { } }",
        "1:26: \"latest\" is specified along with \"all\", another member of \"policy_choice\"",
    );
    check("input { optional: maybe }", "1:19: expected true or false for \"optional\", got 'maybe'");
    check("input { optional: 2 }", "1:19: expected true or false for \"optional\", got '2'");
    check("input: 5", "1:8: expected '{' after \"input\", got '5'");
    check("input { name: 'x'", "1:18: expected a field name or '}', got the end of the file");
    check("input { name: 'x' >", "1:19: expected a field name or '}', got '>'");
    check("}", "1:1: expected a field name, got '}'");
    check("input [ { } { } ]", "1:13: expected ',' or ']' in the list of \"input\", got '{'");
    check("input { dims: [ 1, 2 }", "1:22: expected ',' or ']' in the list of \"dims\", got '}'");
    check("input { dims: [ 1, ] }", "1:20: expected an integer, got ']'");
    check("[type.googleapis.com/x] { }", "1:1: extensions and Any are not part of a model configuration");
    check("parameters { key: 'a' } \nparameters { key: 'a' }", "2:1: \"parameters\" has the key a twice");
    check("\u{0}", "1:1: expected a field name, got '\u{fffd}'");
    check("model_metrics { metric_control { histogram_options { buckets: x } } }", "1:63: expected a number, got 'x'");
}

#[test]
fn bytes_that_are_not_text_or_too_many_are_refused() {
    let check =
        |text: &[u8], want: &str| assert_eq!(ConfigText::decode(Notation::Text, text).unwrap_err().to_string(), want);
    check(b"name: 'a'\n  \xff", "config.pbtxt:2:3: the text is not UTF-8");
    let long = vec![b' '; CONFIG_SIZE_MAX + 1];
    check(&long, "config.pbtxt:1:1: the file has 1048577 bytes, more than the 1048576 allowed");
    assert!(ConfigText::decode(Notation::Text, &long[1..]).is_ok());
}

#[test]
fn an_error_quotes_only_a_short_piece_of_the_text() {
    let text = format!("{}: 1", "a".repeat(5_000));
    assert!(ConfigText::decode(Notation::Text, text.as_bytes()).unwrap_err().to_string().len() < 200);
}

/// `message M { M m = 1; }`: unlike a model configuration it can be nested to any depth.
#[test]
fn nesting_is_bounded() {
    let field = FieldDescriptorProto {
        name: Some("m".to_owned()),
        number: Some(1),
        label: Some(Label::Optional.into()),
        r#type: Some(Type::Message.into()),
        type_name: Some(".M".to_owned()),
        ..FieldDescriptorProto::default()
    };
    let message = DescriptorProto { name: Some("M".to_owned()), field: vec![field], ..DescriptorProto::default() };
    let file = FileDescriptorProto {
        name: Some("m.proto".to_owned()),
        syntax: Some("proto3".to_owned()),
        message_type: vec![message],
        ..FileDescriptorProto::default()
    };
    let pool = DescriptorPool::from_file_descriptor_set(FileDescriptorSet { file: vec![file] }).unwrap();
    let descriptor = pool.get_message_by_name("M").unwrap();
    let nested = |depth: usize| format!("{}{}", "m{".repeat(depth), "}".repeat(depth));
    assert!(ConfigText::decode_as(Notation::Text, nested(CONFIG_DEPTH_MAX).as_bytes(), &descriptor).is_ok());
    let error = ConfigText::decode_as(Notation::Text, nested(CONFIG_SIZE_MAX / 3).as_bytes(), &descriptor).unwrap_err();
    assert_eq!(error.to_string(), "config.pbtxt:1:34: messages are nested deeper than 16");
}

#[test]
fn fields_have_positions_by_their_path() {
    let text = "input [\n  { name: 'x' },\n  { name: 'y' reshape { shape: [ 1,\n 2 ] } }\n]\nparameters { key: 'k' }";
    let config = ConfigText::decode(Notation::Text, text.as_bytes()).unwrap();
    let check = |path: &str, want: Option<(usize, usize)>| {
        let got = config.position(path).map(|position| (position.line, position.column));
        assert_eq!(got, want, "{path}");
    };
    check("input", Some((1, 1)));
    check("input[0]", Some((2, 3)));
    check("input[1]", Some((3, 3)));
    check("input[1].reshape", Some((3, 15)));
    check("input[1].reshape.shape[1]", Some((4, 2)));
    check("parameters", Some((6, 1)));
    check("input[2]", None);
}
