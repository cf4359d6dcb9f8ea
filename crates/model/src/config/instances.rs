//! An update of instance groups: the comparison of a configuration with the loaded one, and the loaded one with the
//! groups of the new one. As in Triton (`EquivalentInNonInstanceGroupConfig`, `model_config_utils.cc`), a model whose
//! configuration differs in them alone is not loaded again.

use prost::Message;

use crate::config::{CompletionRules, ConfigDraft, GpuSupport, complete, instance_group, validate};
use crate::parse::json;
use crate::spec::{ModelSpec, ROWS_CHOSEN_PARAMETER};
use base::error::Error;
use wire::proto::inference::ModelConfig;

impl ConfigDraft {
    /// Returns true if this configuration differs from the loaded one in its instance groups alone, apart from the version
    /// policy. `loaded` is what that was read from, and `shown` what clients see of it: they may send that back with other
    /// groups.
    pub fn differs_in_instances_alone(&self, loaded: &Self, shown: &ModelSpec) -> bool {
        let parts = |draft: &Self| (draft.library.clone(), draft.has_steps, draft.is_of_hub);
        if parts(self) != parts(loaded) {
            return false;
        }
        let is_read = self.axis.has_rows_max == loaded.axis.has_rows_max
            && without_groups(self.config.clone()) == without_groups(loaded.config.clone());
        let is_shown = || {
            let shown = ModelConfig::decode(&*shown.config_message).ok().map(without_groups);
            let mut filled = self.config.clone();
            // It changes while the model serves.
            filled.parameters.remove(ROWS_CHOSEN_PARAMETER);
            complete::fill_defaults(&mut filled, &GpuSupport::default(), CompletionRules::default());
            shown == Some(without_groups(filled))
        };
        is_read || is_shown()
    }

    /// Returns true if it has the instance groups of another.
    pub fn has_groups_of(&self, other: &Self) -> bool {
        self.config.instance_group == other.config.instance_group
    }

    /// Returns true if it has instance groups; otherwise the defaults are used.
    pub fn has_instance_groups(&self) -> bool {
        !self.config.instance_group.is_empty()
    }
}

impl ModelSpec {
    /// Returns this loaded configuration with the instance groups of another one.
    ///
    /// # Errors
    /// `InvalidArgument` if the groups are not valid.
    pub fn with_groups_of(&self, draft: &ConfigDraft, rules: CompletionRules) -> Result<Self, Error> {
        let mut config = ModelConfig::decode(&*self.config_message).map_err(|error| {
            Error::internal(format!("model '{}': its effective configuration cannot be decoded: {error}", self.name))
        })?;
        config.instance_group.clone_from(&draft.config.instance_group);
        complete::fill_instance_groups(&mut config, &draft.gpus, rules);
        validate::instance_groups(&config, &draft.gpus)?;
        Ok(Self {
            instance_groups: config.instance_group.iter().map(instance_group).collect(),
            config_json: json::encode(&config).into(),
            config_message: config.encode_to_vec().into(),
            ..self.clone()
        })
    }
}

/// All but the instance groups, and the version policy: the versions that it selects are compared themselves.
fn without_groups(mut config: ModelConfig) -> ModelConfig {
    config.instance_group.clear();
    config.version_policy = None;
    config
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::ConfigSurroundings;
    use crate::parse::text::Notation;

    const PLAIN: &str = "backend: 'identity' max_batch_size: 4 \
                         input { name: 'x' data_type: TYPE_FP32 dims: 4 } output { name: 'y' data_type: TYPE_FP32 dims: 4 }";

    fn draft(more: &str) -> ConfigDraft {
        ConfigDraft::new("m", Some(format!("{PLAIN} {more}").as_bytes()), &[]).unwrap()
    }

    fn spec(draft: &ConfigDraft) -> ModelSpec {
        draft.clone().complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap()
    }

    #[test]
    fn a_configuration_with_other_groups_alone_is_told_from_any_other() {
        let check = |loaded: &str, new: &str, want: bool| {
            let loaded = draft(loaded);
            assert_eq!(draft(new).differs_in_instances_alone(&loaded, &spec(&loaded)), want, "{new}");
        };
        let group = "instance_group { count: 2 }";
        check(group, "instance_group [ { count: 4 kind: KIND_CPU }, { count: 1 } ]", true);
        check(group, "", true);
        check("", "# a remark", true);
        check(group, "instance_group { count: 3 } version_policy { all {} }", true);
        check(group, "instance_group { count: 3 } metric_tags { key: 'a' value: 'b' }", false);
        check(group, "instance_group { count: 4 } parameters { key: 'a' value { string_value: 'b' } }", false);
        check("dynamic_batching { max_queue_delay_microseconds: 1 }", group, false);
    }

    #[test]
    fn what_a_client_was_shown_may_come_back_with_other_groups() {
        let loaded = draft("instance_group { count: 1 }");
        let shown = spec(&loaded).with_parameters(&[("placement", "worker")]).unwrap();
        let read = |json: &str| {
            let surroundings = ConfigSurroundings::of_files(Some(&[]));
            ConfigDraft::read("m", Notation::Json, json.as_bytes(), surroundings).unwrap()
        };
        let chosen = shown.with_parameters(&[(ROWS_CHOSEN_PARAMETER, "2")]).unwrap();
        let sent = chosen.config_json.replace("\"count\":1", "\"count\":2");
        assert_ne!(*sent, *chosen.config_json);
        assert!(read(&sent).differs_in_instances_alone(&loaded, &shown));
        assert!(!read(&sent.replace("\"worker\"", "\"inline\"")).differs_in_instances_alone(&loaded, &shown));
    }

    #[test]
    fn the_loaded_configuration_takes_the_groups_of_another_and_keeps_the_rest() {
        let loaded = spec(&draft("")).with_parameters(&[("a", "b")]).unwrap();
        let with = |groups: &str| loaded.with_groups_of(&draft(groups), CompletionRules::default());
        let updated = with("instance_group { count: 3 }").unwrap();
        let (group, parameter) = (&updated.instance_groups[0], &updated.parameters["a"]);
        assert_eq!((group.name.as_str(), group.count, parameter.as_str()), ("m_0", 3, "b"));
        assert!(updated.config_json.contains("\"count\":3"), "{}", updated.config_json);
        assert_eq!(with("").unwrap().config_json, loaded.config_json);
        let refused = with("instance_group { count: -1 }").unwrap_err();
        assert!(refused.text().contains("instance group m_0 of model m"), "{refused}");
    }
}
