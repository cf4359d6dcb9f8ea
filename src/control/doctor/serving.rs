//! The part of `deuteron doctor` on one server: its addresses, its files and its models, checked by the code with which
//! a server checks them. Nothing listens and no model is loaded.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Access, access};

use crate::control::doctor::Diagnosis;
use crate::control::engines::model_services::ModelServices;
use crate::control::loading::loaded_version::LoadedVersion;
use crate::control::loading::model_loader::ModelLoader;
use crate::control::loading::model_loader::examination::ExaminedModel;
use crate::control::outside::api_keys::ApiKeys;
use crate::control::outside::certificates::Certificates;
use crate::control::outside::{cache_library, redis};
use crate::control::repository::repositories::Repositories;
use crate::control::serving::plan::choose_default_model;
use crate::control::serving::rate_limit::{self, SharedRateLimiter};
use crate::control::suggest;
use crate::control::thread::initial_load;
use crate::error::Error;
use crate::settings::Settings;

/// An address of the server, and the reason that it cannot listen there.
#[derive(Debug)]
pub struct AddressFinding {
    /// The service, for a person.
    pub service: &'static str,
    /// The flags that set the address.
    pub flags: &'static str,
    /// The address, or the path of a Unix socket.
    pub address: String,
    /// The outcome of the claim.
    pub outcome: Result<(), Error>,
}

impl Diagnosis {
    pub(super) fn addresses(&mut self, addresses: &[AddressFinding]) {
        self.head("Addresses");
        for AddressFinding { service, flags, address, outcome } in addresses {
            match outcome {
                Ok(()) => self.line(&format!("  {service}: {address}, free")),
                Err(error) => {
                    self.line(&format!("  {service}: {address}, cannot be used: {error}"));
                    self.faults.push(format!(
                        "{flags}: {error}; end the program that listens there, or give an address of this machine that is \
                         free"
                    ));
                }
            }
        }
    }

    /// Reads the files of TLS and of API keys, and checks that the log can be written.
    pub(super) fn files(&mut self, settings: &Settings) {
        if let Some(path) = &settings.log_file
            && let Err(error) = check_appendable(path)
        {
            let path = path.display();
            self.faults
                .push(format!("--log-file: cannot open '{path}': {error}; name a file that this user can write"));
        }
        if let Err(why) = settings.foreign.vertex_ai.check() {
            self.faults.push(why.to_owned());
        }
        let has_tls = settings.tls.is_any_on();
        if !has_tls && settings.api_keys_file.is_none() {
            return;
        }
        self.head("Files of access");
        let certificates = has_tls.then(|| Certificates::load(&settings.tls).map(drop));
        let keys = settings.api_keys_file.as_deref().map(|path| ApiKeys::load(path).map(drop));
        for (kind, outcome) in [("certificates and keys of TLS", certificates), ("API keys", keys)] {
            match outcome {
                None => {}
                Some(Ok(())) => self.line(&format!("  {kind}: read")),
                Some(Err(error)) => {
                    self.line(&format!("  {kind}: {error}"));
                    self.faults
                        .push(format!("{error}; name a file that this user can read and that is what the flag says"));
                }
            }
        }
    }

    /// Connects to the response cache, or looks for its library, if it is not in the server.
    pub(super) fn cache(&mut self, settings: &Settings) {
        let login = "correct the user, the password or the database of --cache-config";
        let place = "install the library there, or correct the name in --cache-config";
        let of_redis = redis::examine(settings).map(|outcome| (outcome, login));
        let examined = of_redis.or_else(|| cache_library::examine(settings).map(|outcome| (outcome, place)));
        let Some((outcome, advice)) = examined else { return };
        self.head("Response cache");
        match outcome {
            Ok(found) => self.line(&format!("  {found}")),
            Err(error) => {
                self.line(&format!("  {error}"));
                self.faults.push(format!("{error}; {advice}"));
            }
        }
    }

    /// Checks the models that a server would load at start.
    pub(super) fn models(&mut self, settings: &Settings) {
        if settings.repositories.is_empty() {
            return;
        }
        self.head("Models");
        let found = self.examine(settings);
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                self.line(&format!("  {why}"));
                self.faults.push(why);
                return;
            }
        };
        if found.is_empty() {
            self.line("  none is loaded at start");
        }
        let limiter = rate_limit::limiter(settings);
        let (mut served, mut are_all_known) = (Vec::new(), true);
        for initial_load::ModelFinding { name, place, outcome } in found {
            let outcome = outcome.map_err(|error| error.text().to_owned()).and_then(|found| self.check_python(found));
            let outcome = outcome.and_then(|found| {
                are_all_known &= !found.versions.is_empty();
                served.extend(registered(&found, limiter.as_ref())?);
                Ok(found)
            });
            match outcome {
                Ok(ExaminedModel { versions, engine, python, .. }) => {
                    let numbers: Vec<_> = versions.iter().map(|(version, _)| format!(", version {version}")).collect();
                    let unknown = if numbers.is_empty() { ", completed by its own code when it is loaded" } else { "" };
                    self.line(&format!("  {name}: {engine}{}{unknown}", numbers.concat()));
                    let place = place.filter(|_| python.is_some_and(|python| !python.is_backend));
                    let directory = place.and_then(|(index, directory)| {
                        settings.repositories.get(index).map(|repository| repository.join(directory.path))
                    });
                    if let Some(hint) = directory.and_then(|directory| native_steps(settings, &directory)) {
                        self.line(&format!("    {hint}"));
                    }
                }
                Err(why) => {
                    self.line(&format!("  {name}: cannot be served: {why}"));
                    if settings.exit_on_error {
                        self.faults.push(format!(
                            "model '{name}' cannot be served: {why} (--exit-on-error=false starts the server without it)"
                        ));
                    }
                }
            }
        }
        if are_all_known && let Err(error) = choose_default_model(&mut settings.clone(), &served) {
            self.faults.push(error.text().to_owned());
        }
    }

    fn examine(&self, settings: &Settings) -> Result<Vec<initial_load::ModelFinding>, String> {
        let settings = Arc::new(settings.clone());
        let repositories = Repositories::open(&settings).map_err(|error| {
            format!("--model-repository: {error}; name a directory of models, or a model, that this user can read")
        })?;
        let loader = ModelLoader::new(&settings, ModelServices::new()).map_err(|error| error.text().to_owned())?;
        let examine: initial_load::Examine<'_> = &|location, composing| loader.examine(location, composing);
        initial_load::examine(&settings, &loader, &repositories, examine).map_err(|error| error.text().to_owned())
    }

    /// Refuses a Python model without an interpreter.
    fn check_python(&self, found: ExaminedModel) -> Result<ExaminedModel, String> {
        let brings_none = found.python.as_ref().is_some_and(|python| python.environment.is_none());
        match &self.no_python {
            Some(why) if brings_none => Err(why.clone()),
            _ => Ok(found),
        }
    }
}

/// Tells that a model.py, or a part of it, could run as steps of the server; `None` if no part of it is known.
fn native_steps(settings: &Settings, model: &Path) -> Option<String> {
    let (suggestion, _) = suggest::proposed(settings, model).ok()?;
    let part = if suggestion.is_complete() { "its model.py" } else { "a part of its model.py" };
    let count = suggestion.steps.len();
    let steps = if count == 1 { "step" } else { "steps" };
    let hint =
        || format!("{part} can run as {count} {steps} without Python: deuteron steps suggest {}", model.display());
    (count > 0).then(hint)
}

/// Registers the instances of a model as a load does; the versions give that back when they are dropped.
///
/// # Errors
/// If an instance needs more of a resource than `--rate-limit-resource` gives.
fn registered(found: &ExaminedModel, limiter: Option<&SharedRateLimiter>) -> Result<Vec<LoadedVersion>, String> {
    let versions = found.versions.iter().map(|(version, spec)| LoadedVersion::not_loaded(spec, *version, None));
    rate_limit::register(versions.collect(), limiter).map_err(|failure| failure.error().text().to_owned())
}

/// Checks that a file can be appended to, or made, without making it.
fn check_appendable(path: &Path) -> io::Result<()> {
    match OpenOptions::new().append(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Ok(access(parent, Access::WRITE_OK | Access::EXEC_OK)?)
        }
        outcome => outcome.map(drop),
    }
}
