//! The time limit of runs: reads it for each model, and starts the thread that watches all of them.
//! It sleeps until a run may be due: once in a limit's time while no run takes long.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::RunWatches;
use crate::backend::run_watch::RUN_TIMEOUT_PARAMETER;
use crate::control::machine::spawn::spawn;
use crate::error::Error;
use crate::log;
use crate::model::ModelSpec;
use crate::queue::run_limit::RunLimit;
use crate::runtime::clock;
use crate::settings::Settings;

/// Watches the runs of all instances.
#[derive(Default)]
pub struct RunWatcher {
    watches: Arc<RunWatches>,
}

impl RunWatcher {
    /// Starts the thread, which runs until the process ends.
    ///
    /// # Errors
    /// `Unavailable` when the system refuses another thread.
    pub fn start(&self) -> Result<(), Error> {
        let watches = Arc::clone(&self.watches);
        let body = move || {
            watches.take();
            loop {
                match watches.poll(clock::now()) {
                    Some(at) => std::thread::park_timeout(at.since(clock::now())),
                    None => std::thread::park(),
                }
            }
        };
        spawn("run-watch".to_owned(), body).map(drop)
    }

    /// Returns the limit of a model's runs: its parameter, or else the flag; `None` for 0.
    ///
    /// # Errors
    /// `InvalidArgument` when the parameter is not a whole number.
    pub fn limit(&self, spec: &ModelSpec, settings: &Settings) -> Result<Option<RunLimit>, Error> {
        let own = spec.parameters.get(RUN_TIMEOUT_PARAMETER).map(|text| {
            text.parse().map(Duration::from_secs).map_err(|_| {
                Error::invalid(format!(
                    "parameter '{RUN_TIMEOUT_PARAMETER}' of model '{}' is '{text}', expected a number of seconds, or 0 for \
                     no limit",
                    spec.name
                ))
            })
        });
        let limit = own.transpose()?.unwrap_or(settings.run_timeout);
        let watches = || Arc::clone(&self.watches);
        Ok((!limit.is_zero()).then(|| RunLimit {
            limit,
            watches: watches(),
            clock: clock::now,
            warn: |text| log::warning(text),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::config::{CompletionRules, ConfigDraft};

    #[test]
    fn a_models_parameter_goes_before_the_flag_and_zero_is_no_limit() {
        let limit = |parameter: Option<&str>, flag: u64| {
            let parameter = parameter
                .map(|value| format!("parameters {{ key: 'run_timeout_secs' value {{ string_value: '{value}' }} }}"));
            let text = format!(
                "backend: 'identity' {} input {{ name: 'x' data_type: TYPE_FP32 dims: 1 }}\n\
                 output {{ name: 'y' data_type: TYPE_FP32 dims: 1 }}",
                parameter.unwrap_or_default()
            );
            let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
            let spec = draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap();
            let settings = Settings { run_timeout: Duration::from_secs(flag), ..Settings::default() };
            let limit = RunWatcher::default().limit(&spec, &settings);
            limit.map(|limit| limit.map(|limit| limit.limit.as_secs())).map_err(|error| error.text().to_owned())
        };
        assert_eq!(limit(None, 60), Ok(Some(60)));
        assert_eq!(limit(Some("5"), 60), Ok(Some(5)));
        assert_eq!(limit(Some("0"), 60), Ok(None));
        assert_eq!(limit(Some("90"), 0), Ok(Some(90)));
        assert_eq!(limit(None, 0), Ok(None));
        let want = "parameter 'run_timeout_secs' of model 'm' is '1s', expected a number of seconds, or 0 for no limit";
        assert_eq!(limit(Some("1s"), 60), Err(want.to_owned()));
    }
}
