//! The parameters of Triton's FIL backend (`docs/model_config.md` there). Those that choose between ways of computing the
//! same (`storage_type`, `blocks_per_sm`, `chunk_size`, `layout` …) are taken and have no effect.

use crate::error::Error;
use crate::model::ModelSpec;
use crate::model::trees::{ScoreLink, TreeFormat, TreeModel};

/// What a model is asked to answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FilParameters {
    /// `model_type`; none where it is not given, or where it leaves open in which format XGBoost has written.
    pub(super) format: Option<TreeFormat>,
    /// `is_classifier`, before 25.09 `output_class`.
    is_classifier: bool,
    /// `predict_proba`.
    predict_proba: bool,
    /// `threshold`.
    threshold: f32,
}

/// What becomes of the scores of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RowAnswer {
    /// The class with the highest score; of equal ones the first.
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
    /// Reads them.
    ///
    /// # Errors
    ///
    /// For a value that is none of its parameter's.
    pub(super) fn read(spec: &ModelSpec) -> Result<Self, Error> {
        let is_classifier = flag(spec, "is_classifier")?;
        let output_class = flag(spec, "output_class")?;
        let threshold = spec.parameters.get("threshold").map(|text| {
            let threshold = text.trim().parse::<f32>().ok().filter(|threshold| threshold.is_finite());
            threshold.ok_or_else(|| wrong(spec, "threshold", "a number"))
        });
        Ok(Self {
            format: format(spec)?,
            // As in Triton the old name goes before the new one.
            is_classifier: output_class.or(is_classifier).unwrap_or(false),
            predict_proba: flag(spec, "predict_proba")?.unwrap_or(false),
            threshold: threshold.transpose()?.unwrap_or(0.5),
        })
    }

    /// What makes answers of the sums of this model.
    pub(super) fn link(self, model: &TreeModel) -> ScoreLink {
        // `TreeliteModel` of the FIL backend: whatever the model was trained for.
        match (self.predict_proba && model.class_count > 1, model.link) {
            (false, link) | (true, link @ (ScoreLink::Softmax | ScoreLink::SoftmaxDouble)) => link,
            (true, _) if model.has_vector_leaves() => ScoreLink::Identity,
            (true, _) => ScoreLink::Softmax,
        }
    }

    /// What becomes of the scores of a row, where the configuration has an output of so many values.
    ///
    /// # Errors
    ///
    /// Where classes are asked of a model that has none.
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
        // The old binary format, in Triton; a file of that name is UBJSON since XGBoost 2.1.
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
