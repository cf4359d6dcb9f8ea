//! The rate limiter of the server, and the registration of loaded versions with it.

use std::sync::Arc;

use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::loaded_version::LoadedVersion;
use crate::error::Error;
use crate::model::RateRules;
use crate::queue::rate_limiter::RateLimiter;
use crate::scheduler::rate::{Demand, Need, RateError, Supply};
use crate::settings::{RateResource, Settings};

/// The rate limiter, which all loads share.
pub type SharedRateLimiter = Arc<RateLimiter>;

/// Returns the rate limiter for the resources that all models share; `None` without `--rate-limit`.
pub fn limiter(settings: &Settings) -> Option<SharedRateLimiter> {
    let supply = |resource: &RateResource| Supply {
        name: resource.name.clone(),
        count: resource.count,
        device: resource.device,
    };
    let supplies = settings.rate_limit.resources.iter().map(supply).collect();
    settings.rate_limit.is_on.then(|| Arc::new(RateLimiter::new(supplies)))
}

/// Registers the instances of these versions with the rate limiter, if there is one. A version that is dropped
/// gives its registration back.
///
/// # Errors
/// [`LoadFailure::Version`] when an instance needs more of a resource than there is, or when a resource is global for
/// one instance and per device for another.
pub fn register(
    mut versions: Vec<LoadedVersion>,
    limiter: Option<&Arc<RateLimiter>>,
) -> Result<Vec<LoadedVersion>, LoadFailure> {
    for loaded in &mut versions {
        let demands: Vec<_> = demands(loaded).collect();
        let registration = limiter.map(|limiter| limiter.register(&demands)).transpose();
        let refused = |error: RateError| LoadFailure::Version(loaded.version, Error::invalid(error.to_string()));
        loaded.registration = registration.map_err(refused)?;
    }
    Ok(versions)
}

/// Returns the resources that each active instance needs, in the order of the instances. Passive
/// instances take no batches and need none.
fn demands(loaded: &LoadedVersion) -> impl Iterator<Item = Demand> {
    let active = loaded.worker_groups().filter(|group| !group.is_passive);
    active.flat_map(|group| group.instances().map(|(_, gpu)| demand(&group.rate, gpu)))
}

/// Returns the resources that one instance needs. For resources per device an instance on the CPU
/// counts as on device 0, as in Triton.
fn demand(rules: &RateRules, gpu: Option<u32>) -> Demand {
    let needs = rules.resources.iter().map(|resource| Need {
        name: resource.name.clone(),
        is_global: resource.is_global,
        count: resource.count.into(),
    });
    Demand { device: gpu.unwrap_or(0), priority: rules.priority, needs: needs.collect() }
}
