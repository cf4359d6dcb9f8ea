//! The identity of a model version by its contents: a digest of its configuration and files, the
//! same on every server that loaded the same. Caches that servers share have it in their keys.

use std::fmt;

/// A digest of a loaded model version. Computed by the load, if a cache needs it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ModelIdentity(pub [u8; 32]);

impl fmt::Debug for ModelIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}
