//! Triton's backends, unmodified: shared libraries that are written against `tritonbackend.h`. This
//! is the host for them: `library` opens one beneath a library of ours that has Triton's name and
//! our functions (`abi`), `engine` runs its models as those of any other backend. See
//! `docs/backends.md` for users, and `docs/decisions/0037-a-host-for-backends.md` for the reasons
//! of this symbol resolution.
//!
//! A backend runs in the server's process, on the worker of its instance and on threads of its own.
//! It never runs on a shard: a shard's results for it go to a thread for callbacks (`caller`).

mod abi;
mod agent;
mod agent_object;
mod answers;
mod backend_object;
mod batcher;
mod cache;
mod cache_object;
mod callback;
mod caller;
pub mod elf;
pub mod engine;
mod error;
mod inference_request;
mod inference_response;
mod instance_object;
mod library;
mod memory;
mod message;
mod metric;
mod model_object;
mod object;
mod parameter;
mod request;
mod response;
mod server_object;
mod services;
mod state;
mod statistics;
mod trace;
mod types;

pub use self::agent::{AgentHost, AgentModel, AgentOrder};
pub use self::agent_object::AGENT_PREFIX;
pub use self::backend_object::PreferredGroup;
pub use self::cache::HostedCache;
pub use self::engine::{HostedChanges, HostedDraft, TritonHost};
pub use self::instance_object::InstancePlace;
pub use self::services::{BackendMetrics, BackendSetting, HostOptions, HostPolicies, HostServices, MetricSource};

#[cfg(test)]
mod tests;
