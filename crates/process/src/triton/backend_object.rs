//! A backend as its own code sees it (`TRITONBACKEND_Backend`), and the library behind it. One for each file, from the
//! first model that needs it until the server ends, as in Triton.

#![expect(clippy::disallowed_types, reason = "written while the backend is asked for its attributes")]

use std::ffi::CString;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};
use std::sync::{Mutex, PoisonError};

use crate::triton::error::c_text;
use crate::triton::library::BackendLibrary;
use crate::triton::memory::MemoryManagerObject;
use crate::triton::message::{MessageObject, quoted};
use crate::triton::object::{Owned, hosted_object};
use crate::triton::services::{BackendSetting, HostOptions, HostPolicies, log_error};
use base::error::Error;
use model::InstanceKind;

/// A `TRITONBACKEND_Backend`.
pub(super) struct BackendObject {
    pub(super) name: CString,
    /// The directory of its library.
    pub(super) directory: CString,
    pub(super) config: Owned<MessageObject>,
    pub(super) memory: Owned<MemoryManagerObject>,
    pub(super) state: AtomicPtr<c_void>,
    /// `TRITONBACKEND_ExecutionPolicy`.
    pub(super) policy: AtomicU32,
}

hosted_object!(BackendObject, "backend", 6);

/// A `TRITONBACKEND_BackendAttribute`.
#[derive(Default)]
pub(super) struct AttributesObject {
    pub(super) preferred: Mutex<Vec<PreferredGroup>>,
    pub(super) is_parallel: AtomicBool,
}

hosted_object!(AttributesObject, "backend attribute", 7);

/// An instance group that a backend prefers if the configuration has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferredGroup {
    /// `None` to leave it open (`KIND_AUTO`).
    pub kind: Option<InstanceKind>,
    /// Its instances; 0 for the default.
    pub count: u64,
    /// Its GPUs; empty for all.
    pub gpus: Vec<u64>,
}

/// An opened backend.
pub(super) struct HostedBackend {
    pub(super) object: Owned<BackendObject>,
    pub(super) library: BackendLibrary,
    pub(super) preferred: Vec<PreferredGroup>,
    /// True if its instances may be made at the same time.
    pub(super) is_parallel: bool,
    host_policies: HostPolicies,
}

impl HostedBackend {
    /// Initializes an opened library.
    ///
    /// # Errors
    /// The backend's error.
    pub(super) fn new(
        name: &str,
        directory: &str,
        library: BackendLibrary,
        options: &HostOptions,
    ) -> Result<Self, Error> {
        let object = Owned::new(BackendObject {
            name: c_text(name),
            directory: c_text(directory),
            config: Owned::new(MessageObject::new(config_json(name, options))),
            memory: Owned::new(MemoryManagerObject::default()),
            state: AtomicPtr::new(null_mut()),
            policy: AtomicU32::new(0),
        });
        let host_policies = options.host_policies.clone();
        // Before it is initialized: as in Triton one that fails is finalized too.
        let mut backend = Self { object, library, preferred: Vec::new(), is_parallel: false, host_policies };
        backend.library.initialize(backend.object.handle().any())?;
        let attributes = Owned::new(AttributesObject::default());
        backend.library.attributes(backend.object.handle().any(), attributes.handle().any())?;
        backend.preferred = attributes.preferred.lock().unwrap_or_else(PoisonError::into_inner).clone();
        backend.is_parallel = attributes.is_parallel.load(std::sync::atomic::Ordering::Relaxed);
        Ok(backend)
    }

    /// The message of `TRITONBACKEND_ModelInstanceHostPolicy`: all settings of a policy by its name; none if no flag
    /// describes it (`backend_model_instance.cc`).
    pub(super) fn policy_json(&self, policy: &str) -> String {
        let settings = self.host_policies.get(policy).into_iter().flatten();
        let pairs: Vec<_> = settings.map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).collect();
        format!("{{{}:{{{}}}}}", quoted(policy), pairs.join(","))
    }
}

impl Drop for HostedBackend {
    fn drop(&mut self) {
        if let Err(error) = self.library.finalize(self.object.handle().any()) {
            let name = self.object.name.to_string_lossy();
            log_error(&format!("backend '{name}' failed to finalize: {error}"));
        }
    }
}

/// The message of `TRITONBACKEND_BackendConfig`: settings for all backends, overridden by those of
/// this one, and tritonserver's constant ones.
fn config_json(name: &str, options: &HostOptions) -> String {
    let directory = options.backend_directory.to_string_lossy().into_owned();
    let mut settings = vec![
        ("auto-complete-config", options.auto_complete.to_string()),
        ("backend-directory", directory),
        ("default-max-batch-size", "4".to_owned()),
        ("min-compute-capability", "6.000000".to_owned()),
    ];
    for wanted in ["", name] {
        for BackendSetting { key, value, .. } in options.settings.iter().filter(|setting| setting.backend == wanted) {
            match settings.iter_mut().find(|(known, _)| known == key) {
                Some((_, have)) => have.clone_from(value),
                None => settings.push((key, value.clone())),
            }
        }
    }
    let pairs: Vec<_> = settings.iter().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).collect();
    format!("{{\"cmdline\":{{{}}}}}", pairs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backends_own_settings_go_before_those_of_all() {
        let setting = |backend: &str, key: &str, value: &str| BackendSetting {
            backend: backend.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let options = HostOptions {
            backend_directory: "/b".into(),
            follows_links: false,
            auto_complete: true,
            finalize_max: std::time::Duration::ZERO,
            host_policies: HostPolicies::new(),
            settings: vec![
                setting("", "default-max-batch-size", "8"),
                setting("fil", "a \"b\"", "1"),
                setting("fil", "default-max-batch-size", "2"),
                setting("dali", "c", "3"),
            ],
        };
        let json: serde_json::Value = serde_json::from_str(&config_json("fil", &options)).unwrap();
        let want = serde_json::json!({"cmdline": {
            "auto-complete-config": "true", "backend-directory": "/b", "default-max-batch-size": "2",
            "min-compute-capability": "6.000000", "a \"b\"": "1",
        }});
        assert_eq!(json, want);
    }
}
