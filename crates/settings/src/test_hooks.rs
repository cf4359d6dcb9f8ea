//! The hooks of tritonserver's own tests, by variables of the environment: they hold batches and
//! answers back, so that requests meet in a queue or a client leaves in time. Only a build with the
//! feature `test-hooks` reads them.

use std::time::Duration;

use flags::Variables;

/// The variables that are read.
pub(super) const READ: [&str; 8] = [
    "TRITONSERVER_BACKLOG_DELAY_SCHEDULER",
    "TRITONSERVER_DELAY_GRPC_COMPLETE",
    "TRITONSERVER_DELAY_GRPC_ENQUEUE",
    "TRITONSERVER_DELAY_GRPC_PROCESS",
    "TRITONSERVER_DELAY_GRPC_PROCESS_ENTRY",
    "TRITONSERVER_DELAY_GRPC_RESPONSE",
    "TRITONSERVER_DELAY_SCHEDULER",
    "TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC",
];

/// The delays; zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TestHooks {
    /// Requests that the first batch of each model waits for (`TRITONSERVER_DELAY_SCHEDULER`).
    pub first_batch_requests: usize,
    /// Requests behind other sequences that it waits for too (`TRITONSERVER_BACKLOG_DELAY_SCHEDULER`).
    pub first_batch_backlog: usize,
    /// The delay of the answer to an RPC that is not an inference
    /// (`TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC`).
    pub grpc_answer_delay: Duration,
    /// The delay of a `ModelInfer` before anything is done (`TRITONSERVER_DELAY_GRPC_PROCESS`,
    /// `TRITONSERVER_DELAY_GRPC_PROCESS_ENTRY` and `TRITONSERVER_DELAY_GRPC_ENQUEUE`, together).
    pub grpc_infer_delay: Duration,
    /// The delay of its answer (`TRITONSERVER_DELAY_GRPC_RESPONSE` and
    /// `TRITONSERVER_DELAY_GRPC_COMPLETE`, together).
    pub grpc_infer_answer_delay: Duration,
}

impl TestHooks {
    /// Reads the variables.
    ///
    /// # Errors
    /// One line for a person, if a value is not a number.
    pub(super) fn read(variables: Variables) -> Result<Self, String> {
        let number = |name: &str| {
            let value = variables(name).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
            if value.is_empty() {
                return Ok(0);
            }
            value.parse::<u32>().map_err(|_| format!("{name}={value}: expected a whole number"))
        };
        let count = |name: &str| Ok::<_, String>(usize::try_from(number(name)?).unwrap_or(usize::MAX));
        let pause = |names: &[&str]| {
            let sum = names.iter().map(|name| number(name)).sum::<Result<u32, String>>()?;
            Ok::<_, String>(Duration::from_millis(sum.into()))
        };
        Ok(Self {
            first_batch_requests: count("TRITONSERVER_DELAY_SCHEDULER")?,
            first_batch_backlog: count("TRITONSERVER_BACKLOG_DELAY_SCHEDULER")?,
            grpc_answer_delay: Duration::from_secs(number("TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC")?.into()),
            grpc_infer_delay: pause(&[
                "TRITONSERVER_DELAY_GRPC_PROCESS",
                "TRITONSERVER_DELAY_GRPC_PROCESS_ENTRY",
                "TRITONSERVER_DELAY_GRPC_ENQUEUE",
            ])?,
            grpc_infer_answer_delay: pause(&["TRITONSERVER_DELAY_GRPC_RESPONSE", "TRITONSERVER_DELAY_GRPC_COMPLETE"])?,
        })
    }
}
