//! The fields of `inference.ModelConfig` that this server supports. Every field that a
//! configuration sets is looked up here by its path. So a field that is not listed, such as one
//! that a later Triton adds, is refused by name and never silently ignored. The values of listed
//! fields are checked in `model::config::validate`.

use prost_reflect::{DynamicMessage, FieldDescriptor, Value};

use crate::parse::text::ConfigText;
use base::error::Error;

/// The supported fields, by path, sorted. A message whose fields are all refused is listed too if the empty message
/// means what this server does.
const SUPPORTED: &[&str] = &[
    "backend",
    "batch_input",
    "batch_input.data_type",
    "batch_input.kind",
    "batch_input.source_input",
    "batch_input.target_name",
    "batch_output",
    "batch_output.kind",
    "batch_output.source_input",
    "batch_output.target_name",
    "default_model_filename",
    "dynamic_batching",
    "dynamic_batching.default_priority_level",
    "dynamic_batching.default_queue_policy",
    "dynamic_batching.default_queue_policy.allow_timeout_override",
    "dynamic_batching.default_queue_policy.default_timeout_microseconds",
    "dynamic_batching.default_queue_policy.max_queue_size",
    "dynamic_batching.default_queue_policy.timeout_action",
    "dynamic_batching.max_queue_delay_microseconds",
    "dynamic_batching.preferred_batch_size",
    "dynamic_batching.preserve_ordering",
    "dynamic_batching.priority_levels",
    "dynamic_batching.priority_queue_policy",
    "dynamic_batching.priority_queue_policy.value",
    "dynamic_batching.priority_queue_policy.value.allow_timeout_override",
    "dynamic_batching.priority_queue_policy.value.default_timeout_microseconds",
    "dynamic_batching.priority_queue_policy.value.max_queue_size",
    "dynamic_batching.priority_queue_policy.value.timeout_action",
    "ensemble_scheduling",
    "ensemble_scheduling.max_inflight_requests",
    "ensemble_scheduling.step",
    "ensemble_scheduling.step.input_map",
    "ensemble_scheduling.step.input_map.value",
    "ensemble_scheduling.step.model_name",
    "ensemble_scheduling.step.model_version",
    "ensemble_scheduling.step.output_map",
    "ensemble_scheduling.step.output_map.value",
    "input",
    "input.allow_ragged_batch",
    "input.data_type",
    "input.dims",
    "input.format",
    "input.is_non_linear_format_io",
    "input.is_shape_tensor",
    "input.name",
    "input.optional",
    "input.reshape",
    "input.reshape.shape",
    "instance_group",
    "instance_group.count",
    "instance_group.gpus",
    "instance_group.host_policy",
    "instance_group.kind",
    "instance_group.name",
    "instance_group.passive",
    "instance_group.profile",
    "instance_group.rate_limiter",
    "instance_group.rate_limiter.priority",
    "instance_group.rate_limiter.resources",
    "instance_group.rate_limiter.resources.count",
    "instance_group.rate_limiter.resources.global",
    "instance_group.rate_limiter.resources.name",
    "max_batch_size",
    "metric_tags",
    "metric_tags.value",
    "model_metrics",
    "model_metrics.metric_control",
    "model_metrics.metric_control.histogram_options",
    "model_metrics.metric_control.histogram_options.buckets",
    "model_metrics.metric_control.metric_identifier",
    "model_metrics.metric_control.metric_identifier.family",
    "model_operations",
    "model_operations.op_library_filename",
    "model_repository_agents",
    "model_repository_agents.agents",
    "model_repository_agents.agents.name",
    "model_repository_agents.agents.parameters",
    "model_repository_agents.agents.parameters.value",
    "model_transaction_policy",
    "model_transaction_policy.decoupled",
    "model_warmup",
    "model_warmup.batch_size",
    "model_warmup.count",
    "model_warmup.inputs",
    "model_warmup.inputs.value",
    "model_warmup.inputs.value.data_type",
    "model_warmup.inputs.value.dims",
    "model_warmup.inputs.value.input_data_file",
    "model_warmup.inputs.value.random_data",
    "model_warmup.inputs.value.zero_data",
    "model_warmup.name",
    "name",
    "optimization",
    "optimization.cuda",
    "optimization.execution_accelerators",
    "optimization.execution_accelerators.cpu_execution_accelerator",
    "optimization.execution_accelerators.cpu_execution_accelerator.name",
    "optimization.execution_accelerators.cpu_execution_accelerator.parameters",
    "optimization.execution_accelerators.cpu_execution_accelerator.parameters.value",
    "optimization.execution_accelerators.gpu_execution_accelerator",
    "optimization.execution_accelerators.gpu_execution_accelerator.name",
    "optimization.execution_accelerators.gpu_execution_accelerator.parameters",
    "optimization.execution_accelerators.gpu_execution_accelerator.parameters.value",
    "optimization.graph",
    "optimization.graph.level",
    "optimization.input_pinned_memory",
    "optimization.input_pinned_memory.enable",
    "optimization.output_pinned_memory",
    "optimization.output_pinned_memory.enable",
    "output",
    "output.data_type",
    "output.dims",
    "output.is_non_linear_format_io",
    "output.is_shape_tensor",
    "output.label_filename",
    "output.name",
    "output.reshape",
    "output.reshape.shape",
    "parameters",
    "parameters.value",
    "parameters.value.string_value",
    "platform",
    "response_cache",
    "response_cache.enable",
    "runtime",
    "sequence_batching",
    "sequence_batching.control_input",
    "sequence_batching.control_input.control",
    "sequence_batching.control_input.control.bool_false_true",
    "sequence_batching.control_input.control.data_type",
    "sequence_batching.control_input.control.fp32_false_true",
    "sequence_batching.control_input.control.int32_false_true",
    "sequence_batching.control_input.control.kind",
    "sequence_batching.control_input.name",
    "sequence_batching.direct",
    "sequence_batching.direct.max_queue_delay_microseconds",
    "sequence_batching.direct.minimum_slot_utilization",
    "sequence_batching.iterative_sequence",
    "sequence_batching.max_sequence_idle_microseconds",
    "sequence_batching.oldest",
    "sequence_batching.oldest.max_candidate_sequences",
    "sequence_batching.oldest.max_queue_delay_microseconds",
    "sequence_batching.oldest.preferred_batch_size",
    "sequence_batching.oldest.preserve_ordering",
    "sequence_batching.state",
    "sequence_batching.state.data_type",
    "sequence_batching.state.dims",
    "sequence_batching.state.initial_state",
    "sequence_batching.state.initial_state.data_file",
    "sequence_batching.state.initial_state.data_type",
    "sequence_batching.state.initial_state.dims",
    "sequence_batching.state.initial_state.name",
    "sequence_batching.state.initial_state.zero_data",
    "sequence_batching.state.input_name",
    "sequence_batching.state.output_name",
    "sequence_batching.state.use_same_buffer_for_input_output",
    "version_policy",
    "version_policy.all",
    "version_policy.latest",
    "version_policy.latest.num_versions",
    "version_policy.specific",
    "version_policy.specific.versions",
];

/// Fields that are accepted and have no effect, with everything beneath them and the reason: what they control does not
/// exist here, and ignoring them changes no answer. Each that is set is logged.
const INERT: &[(&str, &str)] = &[
    ("cc_model_filenames", "there is no GPU whose compute capability could choose a file"),
    (
        "ensemble_scheduling.step.model_namespace",
        "a step's model is looked for in the ensemble's own repository first, as in Triton, which sets the field itself",
    ),
    ("instance_group.secondary_devices", "it is for DLA cores beside a GPU, which TensorRT alone uses"),
    ("optimization.cuda.busy_wait_events", "it is for TensorRT"),
    ("optimization.cuda.graph_spec", "it is for TensorRT"),
    ("optimization.cuda.graphs", "it is for TensorRT"),
    ("optimization.cuda.output_copy_stream", "it is for TensorRT"),
    ("optimization.eager_batching", "the instance that runs a batch also forms it, when it is idle"),
    ("optimization.gather_kernel_buffer_threshold", "a CPU has no gather kernel"),
    ("optimization.priority", "it orders CUDA streams and the threads of sequence batchers"),
    ("sequence_batching.state.use_growable_memory", "every state may grow, up to --sequence-state-bytes-max"),
];

/// Checks that all fields that are set are supported. Returns a note for each one without an effect.
///
/// # Errors
/// `Unsupported` for the first field that is not supported, with its position in the text.
pub fn check_supported(model: &str, config: &ConfigText) -> Result<Vec<String>, Error> {
    let root =
        FieldPath { schema_path: String::new(), path: String::new(), relative: String::new(), owner: String::new() };
    let mut walk = SupportWalk { model, config, notes: Vec::new() };
    walk.message(&config.message, &root)?;
    Ok(walk.notes)
}

struct SupportWalk<'a> {
    model: &'a str,
    config: &'a ConfigText,
    notes: Vec<String>,
}

/// The path of a field, in the forms that are needed.
struct FieldPath {
    /// Without indices, as in [`SUPPORTED`].
    schema_path: String,
    /// With indices, as [`ConfigText::position`] expects it.
    path: String,
    /// From the innermost list element to the field, for error texts.
    relative: String,
    /// That list element, as in ` of input 'x'`.
    owner: String,
}

impl SupportWalk<'_> {
    fn message(&mut self, message: &DynamicMessage, place: &FieldPath) -> Result<(), Error> {
        for (field, value) in message.fields().filter(|(field, _)| message.has_field(field)) {
            let place = place.field(&field);
            if !self.check(&place)? {
                continue;
            }
            match value {
                Value::Message(message) => self.message(message, &place)?,
                Value::List(items) => {
                    for (index, item) in items.iter().enumerate() {
                        let Value::Message(message) = item else { continue };
                        self.message(message, &place.item(&field, index, message))?;
                    }
                }
                Value::Map(entries) => {
                    let mut entries: Vec<_> = entries.iter().collect();
                    entries.sort_by_key(|(key, _)| *key);
                    for (_, value) in entries {
                        let place = place.part("value");
                        if !self.check(&place)? {
                            continue;
                        }
                        let Value::Message(message) = value else { continue };
                        self.message(message, &place)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns true if the fields beneath must be checked too.
    fn check(&mut self, place: &FieldPath) -> Result<bool, Error> {
        let path = place.schema_path.as_str();
        if SUPPORTED.contains(&path) {
            return Ok(true);
        }
        let Some((_, why)) = INERT.iter().find(|(inert, _)| *inert == path) else { return Err(self.refusal(place)) };
        let note = format!("'{path}' has no effect here: {why}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
        Ok(false)
    }

    fn refusal(&self, place: &FieldPath) -> Error {
        let at = self.config.position(&place.path).map_or(String::new(), |position| position.to_string());
        let FieldPath { relative, owner, .. } = place;
        Error::unsupported(format!("{at}model '{}': '{relative}'{owner} is not supported yet; remove it", self.model))
    }
}

impl FieldPath {
    fn field(&self, field: &FieldDescriptor) -> Self {
        self.part(field.name())
    }

    fn part(&self, name: &str) -> Self {
        let join = |path: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        Self {
            schema_path: join(&self.schema_path),
            path: join(&self.path),
            relative: join(&self.relative),
            owner: self.owner.clone(),
        }
    }

    /// The path of an element of a list of messages, called by its name if it has one.
    fn item(&self, field: &FieldDescriptor, index: usize, item: &DynamicMessage) -> Self {
        let name = item.get_field_by_name("name");
        let name = name.as_deref().and_then(Value::as_str).filter(|name| !name.is_empty());
        let owner = match name {
            Some(name) => format!(" of {} '{name}'", field.name()),
            None => format!(" of {} {index}", field.name()),
        };
        Self {
            schema_path: self.schema_path.clone(),
            path: format!("{}[{index}]", self.path),
            relative: String::new(),
            owner,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost_reflect::MessageDescriptor;

    use super::*;
    use crate::parse::schema;
    use crate::parse::text::Notation;

    /// All fields beneath a message, by path; `value` is the value of a map entry.
    fn paths(descriptor: &MessageDescriptor, above: &str, paths: &mut Vec<String>) {
        for field in descriptor.fields().filter(|_| above.matches('.').count() < 12) {
            let path = if above.is_empty() { field.name().to_owned() } else { format!("{above}.{}", field.name()) };
            let mut inner = field.kind().as_message().cloned();
            let mut path_inside = path.clone();
            if field.is_map() {
                let value = inner.map(|entry| entry.map_entry_value_field().kind());
                path_inside.push_str(".value");
                paths.push(path_inside.clone());
                inner = value.and_then(|kind| kind.as_message().cloned());
            }
            paths.push(path);
            if let Some(inner) = inner {
                self::paths(&inner, &path_inside, paths);
            }
        }
    }

    #[test]
    fn every_field_is_supported_refused_or_listed_without_effect() {
        let mut all = Vec::new();
        paths(schema::model_config(), "", &mut all);
        assert!(all.len() > 150, "the walk found the fields: {}", all.len());
        // A field that a later `model_config.proto` adds must be put into one of the two.
        let is_beneath = |list: &[(&str, &str)], path: &str| {
            list.iter().any(|(above, _)| path == *above || path.starts_with(&format!("{above}.")))
        };
        for path in &all {
            let places = [SUPPORTED.contains(&path.as_str()), is_beneath(INERT, path)];
            assert_eq!(places.iter().filter(|is_there| **is_there).count(), 1, "{path}: {places:?}");
        }
        let listed = SUPPORTED.iter().chain(INERT.iter().map(|(path, _)| path));
        for path in listed {
            assert!(all.iter().any(|have| have == path), "{path} is not a field");
        }
        assert!(SUPPORTED.is_sorted() && INERT.is_sorted());
    }

    #[test]
    fn fields_without_effect_are_noted() {
        let notes = |text: &str| check_supported("m", &ConfigText::decode(Notation::Text, text.as_bytes()).unwrap());
        assert_eq!(notes("name: 'm' optimization { graph { level: 1 } }"), Ok(vec![]));
        assert_eq!(
            notes("instance_group [ { secondary_devices { } }, { secondary_devices [ { device_id: 1 }, { } ] } ]"),
            Ok(vec![
                "'instance_group.secondary_devices' has no effect here: it is for DLA cores beside a GPU, which TensorRT \
                 alone uses"
                    .to_owned()
            ]),
            "told once, and nothing beneath it"
        );
        assert_eq!(
            notes("optimization { eager_batching: true } cc_model_filenames { key: '7.5' value: 'a' }"),
            Ok(vec![
                "'cc_model_filenames' has no effect here: there is no GPU whose compute capability could choose a file"
                    .to_owned(),
                "'optimization.eager_batching' has no effect here: the instance that runs a batch also forms it, when \
                 it is idle"
                    .to_owned(),
            ])
        );
    }

    #[test]
    fn a_field_that_is_not_supported_is_refused_by_name_and_place() {
        let check = |text: &str, want: &str| {
            let config = ConfigText::decode(Notation::Text, text.as_bytes()).unwrap();
            let got = check_supported("m", &config).map(drop).map_err(|error| error.text().to_owned());
            let want = if want.is_empty() { Ok(()) } else { Err(want.to_owned()) };
            assert_eq!(got, want, "{text}");
        };
        check("", "");
        check("runtime: ''", "");
        check("input [ { name: 'x' optional: false } ]", "");
        check("response_cache { enable: false }", "");
        check("parameters { key: 'a' value { string_value: 'b' } }", "");
        check("instance_group [\n  { name: 'x' },\n  { name: 'y'\n    secondary_devices { } }\n]", "");
        check("input { optional: true allow_ragged_batch: true }", "");
        check("input { reshape { shape: 1 } } output { reshape { } }", "");
        check("dynamic_batching { default_queue_policy { max_queue_size: 4 timeout_action: DELAY } }", "");
        check("dynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 4 } } }", "");
        check("model_warmup [ { name: 'w' } ] metric_tags { key: 'a' value: 'b' }", "");
        check("sequence_batching { }", "");
        check("sequence_batching { iterative_sequence: true state { use_growable_memory: true } }", "");
        check("ensemble_scheduling { step { model_name: 'a' input_map { key: 'x' value: 'y' } } }", "");
        check("ensemble_scheduling { step { model_name: 'a' model_namespace: 'b' } }", "");
        check("instance_group { passive: true rate_limiter { resources { name: 'r' global: true count: 1 } } }", "");
        check("model_repository_agents { agents { name: 'checksum' parameters { key: 'MD5:a' value: 'b' } } }", "");
        check("model_operations { op_library_filename: 'a.so' }", "");
        check(
            "optimization { graph { level: 1 } execution_accelerators { cpu_execution_accelerator { name: 'a' } } }",
            "",
        );
        check(
            "optimization { execution_accelerators { gpu_execution_accelerator { name: 'a' parameters { key: 'b' value: 'c' } } } }",
            "",
        );
        check(
            "optimization { cuda { graphs: true graph_spec { batch_size: 1 input { key: 'x' value { dim: 4 } } } } }",
            "",
        );
    }
}
