//! The variables of the environment that tritonserver reads, beside those that stand for flags
//! here. Each is in one of two lists: those that are read, and those that change nothing.
//! `docs/environment.md` has both for users.

use std::time::Duration;

use crate::Settings;
use flags::Variables;

/// Those that are read: here, by `--cache-config=redis` for its login, by the front ends of hosting
/// services for theirs, and by stores of models for theirs.
pub const READ: [&str; 23] = [
    "AIP_HEALTH_ROUTE",
    "AIP_HTTP_PORT",
    "AIP_MODE",
    "AIP_PREDICT_ROUTE",
    "AIP_STORAGE_URI",
    "AZURE_STORAGE_KEY",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SERVICE_NAME",
    "SAGEMAKER_BIND_TO_PORT",
    "SAGEMAKER_SAFE_PORT_RANGE",
    "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
    "SAGEMAKER_TRITON_INFERENCE_TYPE",
    "SAGEMAKER_TRITON_PING_MODE",
    "TRITONCACHE_REDIS_PASSWORD",
    "TRITONCACHE_REDIS_USERNAME",
    "TRITON_AWS_MOUNT_DIRECTORY",
    "TRITON_AZURE_MOUNT_DIRECTORY",
    "TRITON_CLOUD_CREDENTIAL_PATH",
    "TRITON_GCS_MOUNT_DIRECTORY",
    "TRITON_SERVER_CPU_ONLY",
];

/// Triton's own variables that change nothing, with the reason. Setting one logs a warning.
pub const WITHOUT_EFFECT: [(&str, &str); 13] = [
    ("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", TRITONS_TESTS),
    ("TRITONSERVER_DELAY_GRPC_COMPLETE", TRITONS_TESTS),
    ("TRITONSERVER_DELAY_GRPC_ENQUEUE", TRITONS_TESTS),
    ("TRITONSERVER_DELAY_GRPC_NOTIFICATION", TRITONS_TESTS),
    ("TRITONSERVER_DELAY_GRPC_PROCESS", TRITONS_TESTS),
    ("TRITONSERVER_DELAY_GRPC_PROCESS_ENTRY", TRITONS_TESTS),
    ("TRITONSERVER_DELAY_GRPC_RESPONSE", TRITONS_TESTS),
    ("TRITONSERVER_DELAY_RESPONSE_COMPLETE_EXEC", TRITONS_TESTS),
    ("TRITONSERVER_DELAY_RESPONSE_COMPLETION", TRITONS_TESTS),
    ("TRITONSERVER_DELAY_SCHEDULER", TRITONS_TESTS),
    ("TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC", TRITONS_TESTS),
    ("TRITON_PARALLEL_INSTANCE_LOADING", "the instances of a model are always made side by side"),
    ("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "text of clients is always escaped in the log"),
];

const TRITONS_TESTS: &str = "it delays tritonserver for its own tests";

/// Reads the variables, after the flags, which take precedence. Adds warnings of those without
/// effect.
pub(super) fn apply(settings: &mut Settings, variables: Variables) -> Result<(), String> {
    if variables("TRITON_SERVER_CPU_ONLY").is_some() {
        settings.metrics_config.shows_gpus = false;
    }
    for (name, why) in WITHOUT_EFFECT {
        if !is_read_hook(name) && variables(name).is_some_and(|value| is_on(name, &value.to_string_lossy())) {
            settings.warnings.push(format!("the variable {name} has no effect here: {why}"));
        }
    }
    if settings.trace.is_opentelemetry {
        let text = |name: &str| {
            let value = variables(name).filter(|value| !value.is_empty());
            value.map(|value| value.into_string().map_err(|_| format!("{name}: expected UTF-8"))).transpose()
        };
        let number = |name: &str| {
            let number = |value: String| value.parse().map_err(|_| format!("{name}={value}: expected a whole number"));
            text(name)?.map(number).transpose()
        };
        let delay = number("OTEL_BSP_SCHEDULE_DELAY")?.map(|millis: u32| Duration::from_millis(millis.into()));
        let [records, spans] = [number("OTEL_BSP_MAX_QUEUE_SIZE")?, number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE")?];
        settings.trace.apply_variables(records, delay, spans)?;
        if let Some(name) = text("OTEL_SERVICE_NAME")? {
            settings.trace.name_service(&name);
        }
        if let Some(attributes) = text("OTEL_RESOURCE_ATTRIBUTES")? {
            settings.trace.add_resource(&attributes);
        }
    }
    Ok(())
}

/// Returns true if this build reads a variable of Triton's tests.
fn is_read_hook(name: &str) -> bool {
    #[cfg(feature = "test-hooks")]
    let hooks = &crate::test_hooks::READ[..];
    #[cfg(not(feature = "test-hooks"))]
    let hooks: &[&str] = &[];
    hooks.contains(&name)
}

/// Returns true if a variable asks for something that is not done: escaping is asked for as
/// tritonserver does it unasked.
fn is_on(name: &str, value: &str) -> bool {
    match name {
        "TRITON_PARALLEL_INSTANCE_LOADING" => !matches!(value, "" | "1"),
        "TRITON_SERVER_ESCAPE_LOG_MESSAGES" => value == "0",
        _ => !value.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cache;

    fn apply_to(mut settings: Settings, given: &[(&str, &str)]) -> Result<Settings, String> {
        let variable =
            |name: &str| given.iter().find(|(have, _)| *have == name).map(|(_, value)| OsString::from(value));
        apply(&mut settings, &variable)?;
        cache::check(&mut settings.cache, false, &variable)?;
        Ok(settings)
    }

    #[test]
    fn what_has_no_effect_is_said_and_what_asks_for_nothing_new_is_not() {
        for (name, why) in WITHOUT_EFFECT.into_iter().filter(|(name, _)| !is_read_hook(name)) {
            let settings = apply_to(Settings::default(), &[(name, "0")]).unwrap();
            let want = format!("the variable {name} has no effect here: {why}");
            assert_eq!(settings.warnings, [want]);
            assert!(apply_to(Settings::default(), &[(name, "")]).unwrap().warnings.is_empty(), "{name}");
        }
        for name in ["TRITON_PARALLEL_INSTANCE_LOADING", "TRITON_SERVER_ESCAPE_LOG_MESSAGES"] {
            assert!(apply_to(Settings::default(), &[(name, "1")]).unwrap().warnings.is_empty(), "{name}");
        }
    }

    #[test]
    fn the_page_of_variables_names_each_that_is_read_or_told_of() {
        let page = include_str!("../../../docs/environment.md");
        let (read, without) = page.split_once("## Of tritonserver, and ignored").unwrap();
        for name in READ {
            assert!(read.contains(&format!("`{name}`")) && !without.contains(&format!("`{name}`")), "{name}");
        }
        for (name, _) in WITHOUT_EFFECT {
            assert!(without.contains(&format!("`{name}`")) && !read.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn cpu_only_hides_the_gpus_of_the_metrics_whatever_its_value() {
        assert!(Settings::default().metrics_config.shows_gpus);
        for value in ["", "0", "1"] {
            let settings = apply_to(Settings::default(), &[("TRITON_SERVER_CPU_ONLY", value)]).unwrap();
            assert!(!settings.metrics_config.shows_gpus, "{value}");
        }
    }

    #[test]
    fn the_variables_of_opentelemetry_hold_where_no_flag_says_otherwise() {
        let given = [
            ("OTEL_BSP_MAX_QUEUE_SIZE", "7"),
            ("OTEL_BSP_SCHEDULE_DELAY", "8"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b,service.name=theirs, c=d%2Ce,wrong"),
        ];
        let mut settings = Settings::default();
        let plain = apply_to(settings.clone(), &given).unwrap().trace;
        assert_eq!(plain, settings.trace, "spans do not go to a collector");
        settings.trace.is_opentelemetry = true;
        let read = apply_to(settings.clone(), &given).unwrap().trace;
        assert_eq!((read.records_max, read.batch_delay.as_millis(), read.batch_spans), (7, 8, 9));
        let resource: Vec<_> = read.resource.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(resource.join(" "), "service.name=theirs a=b c=d,e");
        let services = |given: &[(&str, &str)], flag: Option<&str>| {
            let mut settings = settings.clone();
            if let Some(name) = flag {
                settings.trace.resource = vec![("service.name".to_owned(), name.to_owned())];
            }
            let resource = apply_to(settings, given).unwrap().trace.resource;
            resource.into_iter().filter(|(key, _)| key == "service.name").map(|(_, value)| value).collect::<Vec<_>>()
        };
        let own = ("OTEL_SERVICE_NAME", "own");
        assert_eq!(services(&[own, given[3]], None), ["own"], "it comes before the attributes");
        assert_eq!(services(&[own, given[3]], Some("flag")), ["flag"], "the flag comes first");
        assert_eq!(services(&[], None), ["triton-inference-server"]);
        assert!(apply_to(settings.clone(), &[("OTEL_BSP_MAX_QUEUE_SIZE", "0")]).is_err());
        assert!(apply_to(settings, &[("OTEL_BSP_SCHEDULE_DELAY", "soon")]).is_err());
    }
}
