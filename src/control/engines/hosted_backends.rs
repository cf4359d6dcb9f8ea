//! The server's part for hosted backends, agents and caches (shared libraries written for Triton): its flags, its log
//! and its services. The host is that of `process::triton`.

use std::sync::Arc;

use crate::backend::gateway::Gateway;
use crate::control::engines::model_services::ModelServices;
use crate::control::engines::python::log_line;
use crate::error::Error;
use crate::limits::PYTHON_FINALIZE_MAX;
use crate::log;
use crate::process::triton::{AgentHost, BackendSetting, HostOptions, HostServices, HostedCache, TritonHost};
use crate::runtime::clock;
use crate::settings::{CacheLibrarySettings, LibrarySetting, Secret, Settings};
use crate::wire::json::writer;

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

/// Opens the response cache that is a library; `None` without one.
///
/// # Errors
/// As [`HostedCache::open`].
pub fn cache(settings: &Settings, services: &ModelServices) -> Result<Option<HostedCache>, Error> {
    let Some(library) = &settings.cache.library else { return Ok(None) };
    let CacheLibrarySettings { name, settings: given } = library;
    let of = |error: Error| Error::new(error.code(), format!("--cache-config={name}: {}", error.text()));
    let services = host_services(settings, services);
    let cache = HostedCache::open(&services, &settings.cache_directory, name, &cache_config(given)).map_err(of)?;
    log::info(&format!("the response cache is 'libtritoncache_{name}.so'"));
    Ok(Some(cache))
}

/// The settings of a cache as Triton hands them over: an object of strings (`command_line_parser.cc`, `PairsToJsonStr`).
fn cache_config(settings: &[(String, Secret)]) -> String {
    let mut out = vec![b'{'];
    for (index, (name, value)) in settings.iter().enumerate() {
        writer::comma(index, &mut out);
        writer::string(name, &mut out);
        out.push(b':');
        writer::string(value.reveal(), &mut out);
    }
    out.push(b'}');
    String::from_utf8_lossy(&out).into_owned()
}

fn host_services(settings: &Settings, services: &ModelServices) -> HostServices {
    HostServices {
        log: log_line,
        is_verbose: settings.log.verbose > 0,
        is_remote: false,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_a_cache_are_an_object_of_strings() {
        let given = [("host", "r"), ("size", "7"), ("a \"b\"", "c\\d")];
        let given = given.map(|(name, value)| (name.to_owned(), Secret::new(value.to_owned())));
        assert_eq!(cache_config(&given), r#"{"host":"r","size":"7","a \"b\"":"c\\d"}"#);
        assert_eq!(cache_config(&[]), "{}");
    }
}
