//! A configuration apart from the versions that it selects.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use prost::Message;

use crate::config::ConfigDraft;
use wire::proto::inference::ModelConfig;

impl ConfigDraft {
    /// A hash of all but the version policy, to detect changes.
    pub fn mark_without_policy(&self) -> u64 {
        let config = ModelConfig { version_policy: None, ..self.config.clone() };
        let mut hasher = DefaultHasher::new();
        // An explicit `max_batch_size: 0` is another configuration than none.
        let parts = (self.axis.has_rows_max, &self.library, self.has_steps, self.is_of_hub);
        (config.encode_to_vec(), &self.states, parts).hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_version_policy_makes_no_difference() {
        let mark = |more: &str| {
            let text = format!(
                "backend: 'identity' input {{ name: 'x' data_type: TYPE_FP32 dims: 4 }} output {{ name: 'y' data_type: \
                 TYPE_FP32 dims: 4 }} {more}"
            );
            ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap().mark_without_policy()
        };
        let plain = mark("");
        for same in ["version_policy { all { } }", "version_policy { specific { versions: [ 1, 3 ] } }", "name: 'm'"] {
            assert_eq!(mark(same), plain, "{same}");
        }
        let parameters: String =
            (0..40).map(|key| format!("parameters {{ key: '{key}' value {{ string_value: '1' }} }} ")).collect();
        assert_eq!(mark(&parameters), mark(&parameters), "in whichever order a map has its keys");
        for other in ["max_batch_size: 8", "max_batch_size: 0", "metric_tags { key: 'a' value: 'b' }", &parameters] {
            assert_ne!(mark(other), plain, "{other}");
        }
    }
}
