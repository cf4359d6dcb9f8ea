//! The parameters of Triton's backend in a model's configuration, checked when the model is loaded.

use base::error::Error;
use model::ModelSpec;
use model::tensorflow::{GRAPH_TAG, SIGNATURE_DEF};

use super::library::SessionThreads;

/// The parameters of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorflowParameters<'a> {
    /// `TF_NUM_INTRA_THREADS`, `TF_NUM_INTER_THREADS`, `TF_USE_PER_SESSION_THREADS`.
    pub(super) threads: SessionThreads,
    /// `TF_GRAPH_TAG`.
    pub(super) tag: Option<&'a str>,
    /// `TF_SIGNATURE_DEF`.
    pub(super) signature: Option<&'a str>,
    /// `TF_INIT_OPS_FILE`.
    pub(super) init_file: Option<&'a str>,
}

impl<'a> TensorflowParameters<'a> {
    /// Reads them. `MAX_SESSION_SHARE_COUNT` is accepted: instances share one session, which runs them side by side.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid value.
    pub(super) fn read(spec: &'a ModelSpec) -> Result<Self, Error> {
        let text = |key: &str| spec.parameters.get(key).map(|value| value.trim()).filter(|value| !value.is_empty());
        let refuse = |key: &str, expected: &str, value: &str| {
            Error::invalid(format!("parameter '{key}' of model '{}' is '{value}', expected {expected}", spec.name))
        };
        let number = |key: &str| match text(key) {
            None => Ok(None),
            Some(value) => {
                let number = value.parse::<u32>().ok().filter(|number| i32::try_from(*number).is_ok());
                number.map(Some).ok_or_else(|| refuse(key, "a non-negative number", value))
            }
        };
        let are_own = match text("TF_USE_PER_SESSION_THREADS") {
            None => false,
            Some(value) if value == "1" || value.eq_ignore_ascii_case("true") => true,
            Some(value) if value == "0" || value.eq_ignore_ascii_case("false") => false,
            Some(value) => return Err(refuse("TF_USE_PER_SESSION_THREADS", "'true' or 'false'", value)),
        };
        number("MAX_SESSION_SHARE_COUNT")?;
        Ok(Self {
            threads: SessionThreads {
                intra: number("TF_NUM_INTRA_THREADS")?.unwrap_or(0),
                // By default on the worker's own thread: that of a pool has to be woken for each
                // operation.
                inter: number("TF_NUM_INTER_THREADS")?,
                are_own,
            },
            tag: text(GRAPH_TAG.0),
            signature: text(SIGNATURE_DEF.0),
            init_file: text("TF_INIT_OPS_FILE"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::trial::spec;

    #[test]
    fn threads_tag_and_signature_are_read_and_what_is_no_number_is_refused() {
        let with = |parameters: &[(&str, &str)]| {
            let mut spec = spec(0, &[], &[]);
            let owned = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            spec.parameters = owned.collect();
            spec
        };
        let given = with(&[
            ("TF_NUM_INTRA_THREADS", "3"),
            ("TF_NUM_INTER_THREADS", "0"),
            ("TF_USE_PER_SESSION_THREADS", "True"),
            ("TF_GRAPH_TAG", "gpu"),
            ("TF_SIGNATURE_DEF", ""),
            ("MAX_SESSION_SHARE_COUNT", "4"),
        ]);
        let threads = SessionThreads { intra: 3, inter: Some(0), are_own: true };
        let want = TensorflowParameters { threads, tag: Some("gpu"), signature: None, init_file: None };
        assert_eq!(TensorflowParameters::read(&given), Ok(want));
        let check = |key: &str, value: &str, expected: &str| {
            let spec = with(&[(key, value)]);
            let error = TensorflowParameters::read(&spec).unwrap_err();
            assert_eq!(error.text(), format!("parameter '{key}' of model 'm' is '{value}', expected {expected}"));
        };
        for key in ["TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS", "MAX_SESSION_SHARE_COUNT"] {
            check(key, "-1", "a non-negative number");
        }
        check("TF_NUM_INTRA_THREADS", "3000000000", "a non-negative number");
        check("TF_USE_PER_SESSION_THREADS", "2", "'true' or 'false'");
    }
}
