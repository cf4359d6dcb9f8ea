//! The server's side: has processes complete configurations and load models of shared libraries.

use std::path::Path;
use std::sync::Arc;

use crate::python::{LibraryProcesses, LibraryStart, LibraryVersion};
use crate::triton::{HostOptions, HostedChanges, HostedDraft, InstancePlace};
use crate::triton_process::order::{InstanceOrder, LibraryOrder, decode_changes};
use backend::{Backend, LoadedModel};
use base::error::Error;
use model::{HostedLibrary, InstanceSeat, ModelSpec};

/// Runs Triton's backends in processes of their own. One per server.
pub struct IsolatedLibraries {
    /// Starts the processes.
    pub processes: LibraryProcesses,
    /// The options of the backends.
    pub options: HostOptions,
    /// True if verbose lines are logged.
    pub is_verbose: bool,
    /// The command of this program that runs a backend.
    pub command: &'static str,
}

impl IsolatedLibraries {
    /// Has a backend initialize a model and complete its configuration, in a process that ends then.
    ///
    /// # Errors
    /// The backend's error, or the reason why there is no process.
    pub fn complete(&self, draft: &HostedDraft<'_>) -> Result<HostedChanges, Error> {
        let HostedDraft { name, qualified_name, version, version_directory, backend, file, config } = *draft;
        let order = LibraryOrder {
            options: self.options.clone(),
            is_verbose: self.is_verbose,
            backend: backend.to_owned(),
            file: file.to_owned(),
            name: name.to_owned(),
            qualified_name: qualified_name.to_owned(),
            version,
            version_directory: absolute(version_directory),
            config: config.to_owned(),
            instance: None,
        };
        let start = Arc::new(OrderedStart { command: self.command, order, model: None });
        let document = self.processes.complete(LibraryVersion { name, qualified_name, version }, start)?;
        let claimed = decode_changes(&document);
        claimed.map_err(|error| {
            Error::internal(format!(
                "the process of model '{name}' sent an invalid message: {error} (isolation: process)"
            ))
        })
    }
}

impl Backend for IsolatedLibraries {
    fn name(&self) -> &str {
        "a hosted backend"
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        let Some(library) = &spec.library else { return Err(Error::internal("the model has no backend to host")) };
        // Versions are directories with their number as the name.
        let version = directory.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        let version = version.unwrap_or(1);
        let qualified_name = spec.qualified_name();
        let order = LibraryOrder {
            options: self.options.clone(),
            is_verbose: self.is_verbose,
            backend: spec.backend.clone(),
            file: library.file.clone(),
            name: spec.name.clone(),
            qualified_name: qualified_name.to_string(),
            version,
            version_directory: absolute(directory),
            config: spec.config_json.to_string(),
            instance: None,
        };
        let model = OrderedModel { config: spec.config_message.to_vec(), library: HostedLibrary::clone(library) };
        let start = Arc::new(OrderedStart { command: self.command, order, model: Some(model) });
        let named = LibraryVersion { name: &spec.name, qualified_name: &qualified_name, version };
        self.processes.load(named, spec, start)
    }
}

/// Backends open files by this path, and may change the directory that they run in.
fn absolute(directory: &Path) -> std::path::PathBuf {
    std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned())
}

/// The order for the processes of a version.
struct OrderedStart {
    command: &'static str,
    order: LibraryOrder,
    /// `None` to complete a configuration.
    model: Option<OrderedModel>,
}

struct OrderedModel {
    config: Vec<u8>,
    library: HostedLibrary,
}

impl LibraryStart for OrderedStart {
    fn command(&self) -> &'static str {
        self.command
    }

    fn order(&self, seat: Option<&InstanceSeat>) -> Vec<u8> {
        let of_seat = |(model, seat): (&OrderedModel, &InstanceSeat)| {
            let place = InstancePlace::of_seat(seat);
            InstanceOrder { config: model.config.clone(), library: model.library.clone(), place }
        };
        let instance = self.model.as_ref().zip(seat).map(of_seat);
        LibraryOrder { instance, ..self.order.clone() }.encode()
    }
}
