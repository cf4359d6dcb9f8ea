//! Work before and behind a model, without Python: a [`StepList`] is read from a `steps.json` and runs its steps in order
//! on named tensors. A [`Step`] is a pure function from tensors and parameters to tensors. No files, no clock, no
//! threads in here: the caller reads the files that a parameter names, and places the work.
//!
//! Each kind of step is declared once, as a [`StepKind`] in a file of its own: its ports, its parameters, and the function
//! that builds it. The reader, the error texts, the JSON schema and the reference follow from these tables.

pub mod answer;
pub mod audio;
mod axes;
mod bilinear;
mod boxes;
pub mod cast;
pub mod class_map;
mod clean_up;
pub mod concat;
pub mod crop;
pub mod ctc;
pub mod dense;
pub mod detect;
pub mod detokenize;
pub mod entailment;
pub mod fbank;
pub mod fields;
pub mod grid_boxes;
pub mod head;
pub mod hypotheses;
pub mod image;
pub mod kind;
mod labels;
pub mod limits;
pub mod list;
pub mod log_mel;
pub mod masks;
mod mel;
pub mod normalize;
mod original_size;
pub mod parse;
pub mod pool;
mod python_json;
pub mod reference;
pub mod resample;
pub mod scale;
pub mod select;
pub mod shape;
pub mod shown_token;
pub mod spans;
mod spectrum;
pub mod stack;
pub mod suggest;
pub mod template;
pub mod tensors;
pub mod text_boxes;
mod texts;
pub mod token_vectors;
pub mod tokenize;
#[cfg(test)]
mod trial;
#[cfg(test)]
mod trial_tokenizer;
mod vector;

pub use self::fields::{Field, FieldDefault, FieldKind, ReadStepFile, StepFields};
pub use self::kind::{Step, StepKind, StepPadding, StepPort};
pub use self::list::StepList;
pub use self::shown_token::{ShownToken, ShowsTokens};

/// All kinds of steps, in the order of the reference.
pub const KINDS: &[&StepKind] = &[
    &answer::KIND,
    &audio::KIND,
    &cast::KIND,
    &class_map::KIND,
    &concat::KIND,
    &crop::KIND,
    &ctc::KIND,
    &dense::KIND,
    &detect::KIND,
    &detokenize::KIND,
    &entailment::KIND,
    &fbank::KIND,
    &grid_boxes::KIND,
    &head::KIND,
    &hypotheses::KIND,
    &image::KIND,
    &log_mel::KIND,
    &masks::KIND,
    &normalize::KIND,
    &parse::KIND,
    &pool::KIND,
    &resample::KIND,
    &scale::KIND,
    &select::KIND,
    &shape::KIND,
    &spans::KIND,
    &stack::KIND,
    &template::KIND,
    &text_boxes::KIND,
    &token_vectors::KIND,
    &tokenize::KIND,
];
