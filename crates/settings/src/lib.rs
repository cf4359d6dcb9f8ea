//! The server's flags and their settings. `table` declares each once; names are tritonserver's if
//! it has the flag.

mod backend;
mod cache;
mod config_file;
pub mod deployment;
pub mod environment;
mod front_end;
mod health;
mod metrics;
mod new_key;
mod store;
mod supervision;
mod table;
#[cfg(feature = "test-hooks")]
mod test_hooks;
mod tls;
mod trace;
mod value;
mod values;

pub use crate::backend::{
    BackendConfig, Engine, FrameworkConfig, LibrarySetting, OnnxruntimeConfig, PythonConfig, PytorchConfig,
    PytorchRunner, TensorflowEngine,
};
pub use crate::cache::{CacheLibrarySettings, CacheSettings, RedisSettings, Secret};
pub use crate::config_file::{ReadFile, check_file};
pub use crate::front_end::{ForeignSettings, InvocationKind, SageMakerSettings, VertexAiSettings};
pub use crate::health::{AskedServer, HealthQuestion, health_arguments, local_address};
pub use crate::metrics::MetricsConfig;
pub use crate::new_key::{NewKey, key_arguments};
pub use crate::store::{StoreKind, StoreSettings, StoreUrl};
pub use crate::supervision::{EndpointKind, PREDECESSOR, Supervision};
#[cfg(feature = "test-hooks")]
pub use crate::test_hooks::TestHooks;
pub use crate::tls::{PortTls, TlsSettings};
pub use crate::trace::TraceSettings;
pub use crate::values::{
    ClientShm, Compat, ConfigForm, ConnectionSettings, ControlMode, GpuUse, Io, Isolation, LogFormat, LogSettings,
    ModelCacheSettings, Pinning, RateResource, RateSettings, RepositoryRules, ResponseCompression, Settings, SpinTime,
    TrialLoads,
};

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, ValueHint, value_parser};

use crate::table::SECTIONS;
use flags::{self, Variables};

/// The command, for the server itself, that runs the engine of an isolated model.
pub const ENGINE_COMMAND: &str = "run-engine";
/// The command, for the server itself, that runs a backend of Triton's.
pub const BACKEND_COMMAND: &str = "run-backend";
/// The command, for the server itself, that tries a load; the flags of the server follow.
pub const TRIAL_COMMAND: &str = "try-load";

/// The beginning of the refusal of a command line that names no models.
pub const NO_REPOSITORY: &str = "no model repository";

/// The words that are paths of models.
const PATHS: &str = "PATH";
/// The flag that names one, and its variable.
const REPOSITORY: (&str, &str) = ("model-repository", "DEUTERON_MODEL_REPOSITORY");

/// Returns the arguments of a command that serves models, or shows what would be served.
pub fn arguments() -> impl Iterator<Item = Arg> {
    let paths = Arg::new(PATHS).action(ArgAction::Append).num_args(0..).value_parser(value_parser!(OsString));
    let paths = paths.help("The same as --model-repository").value_hint(ValueHint::AnyPath);
    std::iter::once(paths).chain(flags::arguments(SECTIONS))
}

/// Returns the settings of a command that needs models; see [`read_any`].
pub fn read(matches: &ArgMatches, variables: Variables, read_file: ReadFile) -> Result<Settings, String> {
    let settings = read_any(matches, variables, read_file)?;
    if settings.repositories.is_empty() {
        return Err(format!(
            "{NO_REPOSITORY}: name a directory of models, as in `deuteron serve examples/models`; --help tells more"
        ));
    }
    Ok(settings)
}

/// Returns the settings of a command line, the environment and the file of `--config`; a flag goes
/// before its variable, a variable before the file. The error is one line for a person.
pub fn read_any(matches: &ArgMatches, variables: Variables, read_file: ReadFile) -> Result<Settings, String> {
    read_over(Settings::default(), matches, variables, read_file)
}

/// The same over settings that others have made, such as those of a deployment: what is given here holds.
pub fn read_over(
    mut settings: Settings,
    matches: &ArgMatches,
    variables: Variables,
    read_file: ReadFile,
) -> Result<Settings, String> {
    let is_for_predictions = front_end::is_for_predictions(variables);
    settings.foreign.vertex_ai.is_on = is_for_predictions;
    let paths = repositories(matches);
    // A word is the flag without its name, and goes before the variable as well.
    let left = |name: &str| if name == REPOSITORY.1 && !paths.is_empty() { None } else { variables(name) };
    let of_file = config_file::apply(matches, &left, !paths.is_empty(), read_file, &mut settings)?;
    let warnings = flags::apply_variables(SECTIONS, matches, &left, &mut settings)?;
    settings.warnings.extend(warnings);
    flags::apply(SECTIONS, matches, &mut settings)?;
    cache::check(&mut settings.cache, settings.allows_agents, variables)?;
    environment::apply(&mut settings, variables)?;
    settings.stores.apply(variables);
    if !paths.is_empty() {
        settings.repositories = paths;
    }
    if is_for_predictions {
        // A front end that is not asked for is not served there.
        let is_asked_for = |flag: &str, variable: &str| {
            flags::is_given(matches, flag)
                || variables(variable).is_some_and(|value| !value.is_empty())
                || of_file.contains(flag)
        };
        settings.http = settings.http.filter(|_| is_asked_for("allow-http", "DEUTERON_ALLOW_HTTP"));
        settings.grpc = settings.grpc.filter(|_| is_asked_for("allow-grpc", "DEUTERON_ALLOW_GRPC"));
    }
    settings.foreign.read_variables(variables)?;
    if settings.foreign.vertex_ai.is_on && settings.repositories.is_empty() {
        settings.repositories.extend(front_end::storage(variables));
    }
    check(settings)
}

/// Returns the paths of models, with the flag and without it, in the order of the command line: the
/// first that has a model serves it. A word need not be UTF-8.
pub fn repositories(matches: &ArgMatches) -> Vec<PathBuf> {
    let given = [REPOSITORY.0, PATHS].into_iter().flat_map(|name| {
        let values = matches.get_raw(name).unwrap_or_default();
        matches.indices_of(name).unwrap_or_default().zip(values)
    });
    let mut given: Vec<_> = given.collect();
    given.sort_by_key(|(index, _)| *index);
    let mut paths: Vec<PathBuf> = Vec::with_capacity(given.len());
    for (_, path) in given {
        // Like tritonserver: a path that is named twice counts once.
        if !paths.iter().any(|have| have.as_os_str() == path) {
            paths.push(PathBuf::from(path));
        }
    }
    paths
}

/// Triton's words for its own flag of the same name.
const STRICT_DEPRECATED: &str =
    "Warning: '--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead.";

/// There is no pool that could be sized.
const CUDA_POOL_WITHOUT_EFFECT: &str = "--cuda-memory-pool-byte-size has no effect here: memory of a GPU is taken when an instance is made, and \
     --gpu-memory-bytes-max bounds it";

/// SageMaker loads the models of multi-model endpoints over its own port.
const HOST_CANNOT_LOAD: &str =
    "with --admin-socket SageMaker cannot load and unload models: its multi-model endpoints need the port for that";

fn check(mut settings: Settings) -> Result<Settings, String> {
    store::check(&settings.repositories, cfg!(feature = "stores"))?;
    let warnings = trace::check(&mut settings.trace)?;
    settings.warnings.extend(warnings);
    settings.warnings.extend(tls::check(&settings.tls)?);
    if settings.admin_socket.is_some() && settings.foreign.sagemaker.endpoint().is_some() {
        settings.warnings.push(HOST_CANNOT_LOAD.to_owned());
    }
    if settings.foreign.auto_complete_disabled {
        if settings.auto_complete && settings.warnings.iter().any(|warning| warning == STRICT_DEPRECATED) {
            settings.warnings.push(
                "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of \
                 '--disable-auto-complete-config'!"
                    .to_owned(),
            );
        }
        settings.auto_complete = false;
    }
    if settings.compat == Compat::Triton && settings.id == Settings::default().id {
        settings.id = "triton".to_owned();
    }
    if settings.model_name.is_some() && settings.repositories.len() > 1 {
        return Err("--model-name names one model, and there are several paths".to_owned());
    }
    if !settings.load_models.is_empty() && !settings.loads_when_asked() {
        return Err("--load-model names models for --model-control-mode=explicit; without it all are loaded".into());
    }
    check_model_cache(&settings)?;
    let endpoints = [
        ("HTTP", settings.http),
        ("GRPC", settings.grpc),
        ("metrics", settings.metrics),
        ("Vertex AI", settings.foreign.vertex_ai.endpoint()),
        ("SageMaker", settings.foreign.sagemaker.endpoint()),
    ];
    let [others @ .., _] = &endpoints;
    front_end::check_ports(&settings.foreign.sagemaker, others)?;
    for (index, (one, first)) in endpoints.iter().enumerate() {
        for (other, second) in endpoints.iter().skip(index + 1) {
            if first.is_some_and(|(_, port)| port != 0) && first == second {
                return Err(format!(
                    "The server cannot listen to {one} requests and {other} requests at the same address and port"
                ));
            }
        }
    }
    Ok(settings)
}

/// Refuses settings that do not go with models that are loaded on demand.
fn check_model_cache(settings: &Settings) -> Result<(), String> {
    if settings.model_cache.size_max.is_none() {
        return Ok(());
    }
    if settings.control_mode == ControlMode::Poll {
        return Err(
            "--model-cache-bytes-max loads models when they are asked for, and --model-control-mode=poll all of \
                    them: give one of the two"
                .to_owned(),
        );
    }
    if settings.repository_rules.has_namespaces {
        return Err("--model-cache-bytes-max finds a model by its name alone: it does not go with --model-namespacing"
            .to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
