//! The server's part for hosted backends (shared libraries written for Triton): its flags, its log
//! and its services. The host is that of `process::triton`.

use std::sync::Arc;

use crate::backend::gateway::Gateway;
use crate::control::engines::model_services::ModelServices;
use crate::control::engines::python::log_line;
use crate::limits::PYTHON_FINALIZE_MAX;
use crate::log;
use crate::process::triton::{AgentHost, BackendSetting, HostOptions, HostServices, TritonHost};
use crate::runtime::clock;
use crate::settings::{LibrarySetting, Settings};

/// Returns the host of backends, as the flags say.
pub fn host(settings: &Settings, services: &ModelServices) -> TritonHost {
    let given = &settings.backend_config.libraries;
    let unknown = given
        .iter()
        .find(|setting| !setting.backend.is_empty() && !settings.backend_directory.join(&setting.backend).is_dir());
    if let Some(LibrarySetting { backend, key, .. }) = unknown {
        log::warning(&format!(
            "--backend-config={backend},{key} is for a library beside a model: --backend-directory has no '{backend}'"
        ));
    }
    TritonHost::new(&host_services(settings, services), options(settings))
}

/// Returns the host of repository agents; `None` without `--allow-agents`.
pub fn agents(settings: &Settings, services: &ModelServices) -> Option<AgentHost> {
    let host = || AgentHost::new(&host_services(settings, services), settings.repoagent_directory.clone());
    settings.allows_agents.then(host)
}

fn host_services(settings: &Settings, services: &ModelServices) -> HostServices {
    HostServices {
        log: log_line,
        is_verbose: settings.log.verbose > 0,
        clock: clock::now,
        metrics: Arc::new(Arc::clone(&services.metrics)),
        gateway: Arc::clone(&services.gateway) as Arc<dyn Gateway>,
    }
}

/// Returns the options of backends, as the flags say.
pub fn options(settings: &Settings) -> HostOptions {
    let setting = |LibrarySetting { backend, key, value }: &LibrarySetting| BackendSetting {
        backend: backend.clone(),
        key: key.clone(),
        value: value.clone(),
    };
    HostOptions {
        backend_directory: settings.backend_directory.clone(),
        follows_links: !settings.repository_rules.refuses_links,
        auto_complete: settings.auto_complete,
        finalize_max: settings.exit_timeout.min(PYTHON_FINALIZE_MAX),
        host_policies: settings.host_policy_settings.clone(),
        settings: settings.backend_config.libraries.iter().map(setting).collect(),
    }
}
