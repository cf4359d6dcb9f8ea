//! Which requests an engine of foreign code may not survive: known from a model's graph before its load, and found by its
//! trial. Decides what is tried, what is refused, and what runs in processes of its own. Called on load threads.

use crate::control::engines::isolation::{self, EngineProcesses, ISOLATION};
use crate::control::loading::load_probe::{self, ProbeFindings};
use crate::control::loading::load_trial::LoadTrials;
use crate::control::loading::model_loader::{ModelLoader, ModelLocation};
use crate::error::Error;
use crate::limits::MODEL_SIZE_MAX;
use crate::log;
use crate::model::ModelSpec;
use crate::model::onnx::trust::{GraphEngine, GraphTrust};
use crate::model::platform::{ENGINE_BACKENDS, ONNX_BACKEND, OPENVINO_BACKEND};
use crate::process::isolation::EngineKind;

/// Known risks of a model: requests that its engine does not survive.
pub(super) struct KnownRisks {
    pub(super) trust: GraphTrust,
    pub(super) findings: ProbeFindings,
}

impl KnownRisks {
    /// Has the server refuse what the engine does not survive, unless the model is isolated.
    pub(super) fn apply(&self, spec: &mut ModelSpec, is_isolated: bool) {
        if !is_isolated {
            spec.refused_axes = self.findings.refused();
            self.findings.log(spec);
        }
    }
}

/// Returns true if a model may not survive an empty input, and a trial can tell.
pub(super) fn is_doubted(trust: &GraphTrust, spec: &ModelSpec) -> bool {
    trust.is_doubtful && trust.trusting.is_none() && load_probe::may_be_probed(spec)
}

impl ModelLoader {
    /// The starter of the processes of a model that runs in such because of its graph or a trial.
    pub(super) fn unasked_processes(&self, spec: &ModelSpec, known: &KnownRisks) -> Option<&EngineProcesses> {
        let processes = self.engine_processes.as_ref()?;
        let why = why_unasked(spec, &known.trust, &known.findings)?;
        let name = &spec.name;
        log::info(&format!(
            "'{name}' runs in a process of its own, since {why}; the parameter 'isolation' set to 'none' \
                            keeps it in the server"
        ));
        Some(processes)
    }

    /// Has `trials` try a model, and reads its graph. One that may not survive an empty input is tried without them, too.
    ///
    /// # Errors
    /// The error of the load in the trial.
    pub(super) fn known_risks(
        &self,
        location: ModelLocation<'_>,
        version: u64,
        spec: &ModelSpec,
        trials: Option<&LoadTrials>,
    ) -> Result<KnownRisks, Error> {
        let run = |trials: &LoadTrials| trials.run(location.source, location.directory, version);
        let findings = trials.map(run).transpose()?;
        // After the trial, which may not survive the engine's library that this opens.
        let trust = self.trust(location, version, spec);
        let is_doubted = findings.is_none() && is_doubted(&trust, spec);
        let doubted = self.trials.as_ref().filter(|trials| is_doubted && trials.wants_doubtful());
        let tried = doubted.map(run).transpose()?;
        Ok(KnownRisks { trust, findings: findings.or(tried).unwrap_or_default() })
    }

    /// Finds the values of requests that the graph of a model trusts, if an engine of foreign code runs it.
    pub(super) fn trust(
        &self,
        ModelLocation { source, directory }: ModelLocation<'_>,
        version: u64,
        spec: &ModelSpec,
    ) -> GraphTrust {
        let is_of_engine = [ONNX_BACKEND, OPENVINO_BACKEND].contains(&spec.backend.as_str()) && spec.library.is_none();
        let engine = if is_of_engine { self.engines.choose(spec).ok() } else { None };
        let library = engine.and_then(|engine| self.engines.library(engine));
        let kind = match library.map(|library| library.kind) {
            Some(EngineKind::Onnxruntime) => GraphEngine::Onnxruntime,
            Some(EngineKind::Openvino) => GraphEngine::Openvino,
            _ => return GraphTrust::default(),
        };
        let name = &spec.default_model_filename;
        let Ok(file) = source.read(&format!("{}/{name}", directory.version_path(version)), MODEL_SIZE_MAX) else {
            // The load says why.
            return GraphTrust::default();
        };
        match name.to_ascii_lowercase().ends_with(".xml") {
            true => GraphTrust::of_openvino(&String::from_utf8_lossy(&file)),
            false => GraphTrust::of_onnx(&file, kind),
        }
    }

    /// Returns `None` for a model that is isolated, or safe from inputs that crash its engine. A trial tries others
    /// with such inputs; true if it also tries extremes of integers.
    pub fn probes(&self, location: ModelLocation<'_>, version: u64, spec: &ModelSpec) -> Option<bool> {
        let engine = self.engines.choose(spec).ok()?;
        self.engines.library(engine)?;
        let is_asked = isolation::is_isolated(spec, &self.settings).unwrap_or(true);
        let trust = self.trust(location, version, spec);
        if is_asked || trust.trusting.is_some() || !load_probe::may_be_probed(spec) {
            return None;
        }
        // Of graphs in other forms nothing is known.
        Some(trust.has_sizes || ![ONNX_BACKEND, OPENVINO_BACKEND].contains(&spec.backend.as_str()))
    }
}

/// Why a model runs in processes of its own though nothing asks for it: what its graph trusts, or what a trial found.
/// The parameter says otherwise, and then only a warning does.
fn why_unasked(spec: &ModelSpec, trust: &GraphTrust, findings: &ProbeFindings) -> Option<String> {
    let of_operator = |(operator, reason): &(String, &str)| {
        format!("its operator '{operator}' gets values of requests, and {reason}")
    };
    let why = trust.trusting.as_ref().map(of_operator).or_else(|| findings.why_isolated(spec))?;
    let is_stated = spec.parameters.contains_key(ISOLATION);
    if is_stated || spec.is_on_gpu() || !ENGINE_BACKENDS.contains(&spec.backend.as_str()) {
        let name = &spec.name;
        log::warning(&format!("'{name}' runs in the server, though a request may end it: {why}"));
        return None;
    }
    Some(why)
}
