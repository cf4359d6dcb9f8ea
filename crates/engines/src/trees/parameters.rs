//! The parameters of Triton's FIL backend (`docs/model_config.md` there). Those that choose between
//! ways of computing the same (`storage_type`, `blocks_per_sm`, `chunk_size`, `layout` …) are
//! accepted and have no effect.

use base::error::Error;
use model::ModelSpec;
use model::trees::{ScoreLink, TreeFormat, TreeModel};

/// The answer that is asked of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FilParameters {
    /// `model_type`; `None` if it is missing, or leaves open which of XGBoost's formats the file
    /// has.
    pub(super) format: Option<TreeFormat>,
    /// `is_classifier`, before 25.09 `output_class`.
    is_classifier: bool,
    /// `predict_proba`.
    predict_proba: bool,
    /// `threshold`.
    threshold: f32,
}

/// The answer made of the scores of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RowAnswer {
    /// The class with the highest score; the first of equal ones.
    BestClass,
    /// `1 - p` and `p`.
    BothProbabilities,
    /// The scores.
    Scores,
    /// 1 if the score is above the threshold, or else 0.
    Threshold(f32),
}

impl RowAnswer {
    /// Values of a row.
    pub(super) const fn width(self, outputs: usize) -> usize {
        match self {
            Self::BestClass | Self::Threshold(_) => 1,
            Self::BothProbabilities => 2,
            Self::Scores => outputs,
        }
    }
}

impl FilParameters {
    /// Reads the parameters.
    ///
    /// # Errors
    ///
    /// If a value is not valid for its parameter.
    pub(super) fn read(spec: &ModelSpec) -> Result<Self, Error> {
        let is_classifier = flag(spec, "is_classifier")?;
        let output_class = flag(spec, "output_class")?;
        let threshold = spec.parameters.get("threshold").map(|text| {
            let threshold = text.trim().parse::<f32>().ok().filter(|threshold| threshold.is_finite());
            threshold.ok_or_else(|| wrong(spec, "threshold", "a number"))
        });
        Ok(Self {
            format: format(spec)?,
            // As in Triton, the old name takes precedence.
            is_classifier: output_class.or(is_classifier).unwrap_or(false),
            predict_proba: flag(spec, "predict_proba")?.unwrap_or(false),
            threshold: threshold.transpose()?.unwrap_or(0.5),
        })
    }

    /// Returns the function from this model's sums to answers.
    pub(super) fn link(self, model: &TreeModel) -> ScoreLink {
        // `TreeliteModel` of the FIL backend: independent of the model's training.
        match (self.predict_proba && model.class_count > 1, model.link) {
            (false, link) | (true, link @ (ScoreLink::Softmax | ScoreLink::SoftmaxDouble)) => link,
            (true, _) if model.has_vector_leaves() => ScoreLink::Identity,
            (true, _) => ScoreLink::Softmax,
        }
    }

    /// Returns the answer made of the scores of a row, for an output of `values` values in the
    /// configuration.
    ///
    /// # Errors
    ///
    /// If classes are asked of a model without classes.
    pub(super) fn answer(self, spec: &ModelSpec, model: &TreeModel, values: Option<usize>) -> Result<RowAnswer, Error> {
        if !self.is_classifier {
            return Ok(RowAnswer::Scores);
        }
        if model.target_count > 1 {
            return Err(Error::invalid(format!(
                "model '{}' has {} targets and no classes: set the parameter 'is_classifier' to false",
                spec.name, model.target_count
            )));
        }
        Ok(match (self.predict_proba, model.class_count, values) {
            (true, 1, Some(2)) => RowAnswer::BothProbabilities,
            (true, _, _) => RowAnswer::Scores,
            (false, 1, _) => RowAnswer::Threshold(self.threshold),
            (false, _, _) => RowAnswer::BestClass,
        })
    }
}

fn format(spec: &ModelSpec) -> Result<Option<TreeFormat>, Error> {
    let Some(name) = spec.parameters.get("model_type") else { return Ok(None) };
    match name.as_str() {
        // Triton's name for the old binary format; a file with this type is UBJSON since XGBoost
        // 2.1.
        "xgboost" => Ok(None),
        "xgboost_json" => Ok(Some(TreeFormat::XgboostJson)),
        "xgboost_ubj" => Ok(Some(TreeFormat::XgboostUbjson)),
        "lightgbm" => Ok(Some(TreeFormat::LightGbm)),
        "treelite_checkpoint" => Ok(Some(TreeFormat::Treelite)),
        _ => Err(wrong(spec, "model_type", "xgboost_json, xgboost_ubj, xgboost, lightgbm or treelite_checkpoint")),
    }
}

fn flag(spec: &ModelSpec, key: &str) -> Result<Option<bool>, Error> {
    let Some(text) = spec.parameters.get(key) else { return Ok(None) };
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(Some(true)),
        "false" | "0" => Ok(Some(false)),
        _ => Err(wrong(spec, key, "true or false")),
    }
}

fn wrong(spec: &ModelSpec, key: &str, expected: &str) -> Error {
    let value = spec.parameters.get(key).map_or("", String::as_str);
    let name = &spec.name;
    Error::invalid(format!("parameter '{key}' of model '{name}' is '{}', expected {expected}", value.escape_debug()))
}
