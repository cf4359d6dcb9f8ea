//! The fuzz targets `config`, `config_json` and `config_toml`.

use super::*;
use crate::parse::text::TextError;
use crate::platform::PYTHON_FILENAME;

/// Properties for the fuzz targets `config`, `config_json` and `config_toml`: any bytes are a configuration or are
/// refused at a position inside the text; a configuration written in each notation reads back the same; and the
/// effective configuration of an accepted one is accepted again and stays the same.
pub fn check_any_text(notation: Notation, text: &[u8]) {
    match ConfigText::decode(notation, text) {
        Ok(config) => {
            let model: ModelConfig = config.message.transcode_to().expect("both have the same descriptor");
            assert_written(&model);
        }
        Err(error) => assert_inside(text, &error),
    }
    let files = ["model.onnx".to_owned()];
    // Any backend of two files is Python-based here, so that these configurations are tried as well.
    let surroundings = ConfigSurroundings {
        has_backend_file: &|_, file| file == PYTHON_FILENAME,
        ..ConfigSurroundings::of_files(Some(&files))
    };
    let Ok(draft) = ConfigDraft::read("m", notation, text, surroundings) else { return };
    let labels = draft.label_filenames().into_iter().map(|name| (name.to_owned(), Arc::default()));
    let labels: BTreeMap<_, _> = labels.collect();
    let Ok(spec) = draft.complete(None, &labels, CompletionRules::default()) else { return };
    let shown = ModelConfig::decode(&*spec.config_message).expect("it was just encoded");
    let again = ConfigDraft {
        config: shown,
        notes: Vec::new(),
        states: BTreeMap::new(),
        gpus: GpuSupport::default(),
        library: None,
        missing_backend: None,
        has_steps: false,
        is_of_hub: false,
        are_outputs_filled: false,
        axis: KnownAxis { has_rows_max: true, ..KnownAxis::default() },
    };
    let again = again.complete(None, &labels, CompletionRules::default());
    assert_eq!(again.map(|again| again.config_json), Ok(spec.config_json), "the effective form is a fixed point");
}

fn assert_written(model: &ModelConfig) {
    let once = write::encode(model, Notation::Text);
    for notation in Notation::ALL {
        let text = write::encode(model, notation);
        let read = ConfigText::decode(notation, text.as_bytes());
        let read = read.unwrap_or_else(|error| unreadable(&error, &text));
        let again: ModelConfig = read.message.transcode_to().expect("both have the same descriptor");
        assert_eq!(write::encode(&again, Notation::Text), once, "written in {notation:?} and read back");
    }
}

#[expect(clippy::panic, reason = "a fuzz target reports by panicking")]
fn unreadable(error: &TextError, text: &str) -> ! {
    panic!("a written configuration does not read back: {error}\n{text}")
}

fn assert_inside(text: &[u8], error: &TextError) {
    let line = text.split(|byte| *byte == b'\n').nth(error.position.line.saturating_sub(1));
    let columns = line.map(|line| String::from_utf8_lossy(line).chars().count());
    assert!(
        columns.is_some_and(|columns| (1..=columns + 1).contains(&error.position.column)),
        "the position is inside the text: {error}"
    );
    assert!(!error.to_string().contains(['\n', '\r']), "the refusal is one line: {error:?}");
}
