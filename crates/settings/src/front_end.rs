//! The front ends of hosting services: the result of their flags and of the services' own variables
//! of the environment. The variables are those that SageMaker and Vertex AI set in a container, so
//! their names are not ours.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

#[cfg(feature = "test-hooks")]
use crate::test_hooks::TestHooks;
use base::policy::PathPattern;
use flags::{self, Variables};

/// Settings that only hosts and tests of tritonserver need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignSettings {
    /// The settings for SageMaker.
    pub sagemaker: SageMakerSettings,
    /// The settings for Vertex AI.
    pub vertex_ai: VertexAiSettings,
    /// True if a flag says that nothing is taken from the model file, whatever the deprecated one
    /// says.
    pub auto_complete_disabled: bool,
    /// The delays of tests.
    #[cfg(feature = "test-hooks")]
    pub test_hooks: TestHooks,
}

/// SageMaker's front end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SageMakerSettings {
    /// True if it is served.
    pub is_on: bool,
    /// The address.
    pub address: IpAddr,
    /// The port; `None` for that of the environment, else 8080.
    pub port: Option<u16>,
    /// The ports that others may have at this address, the first and the last.
    pub safe_ports: Option<(u16, u16)>,
    /// The directory below which the host puts the models that it loads.
    pub models_root: String,
    /// True if `/ping` reports only that the server is up.
    pub pings_live: bool,
    /// The model of `/invocations`.
    pub model: String,
    /// The kind of `/invocations`.
    pub invocation: InvocationKind,
}

/// The kind of an invocation (`SAGEMAKER_TRITON_INFERENCE_TYPE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InvocationKind {
    /// An inference.
    #[default]
    Infer,
    /// A generate request.
    Generate,
    /// A generate request that is answered by events.
    GenerateStream,
}

/// Vertex AI's front end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VertexAiSettings {
    /// True if it is served.
    pub is_on: bool,
    /// The address.
    pub address: IpAddr,
    /// The port; `None` for that of the environment, else 8080.
    pub port: Option<u16>,
    /// The model of predictions; `None` for the only one that there is.
    pub model: Option<String>,
    /// The path of predictions; present if it is served.
    pub predict: Option<PathPattern>,
    /// The path of the health probe; present if it is served.
    pub health: Option<PathPattern>,
}

/// The port of both, as in tritonserver.
const PORT: u16 = 8080;
/// The model of `/invocations` if none is named, which does not exist; tritonserver's text.
const UNSPECIFIED_MODEL: &str = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME";

impl Default for SageMakerSettings {
    fn default() -> Self {
        Self {
            is_on: false,
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: None,
            safe_ports: None,
            models_root: "/opt/ml/models".to_owned(),
            pings_live: false,
            model: UNSPECIFIED_MODEL.to_owned(),
            invocation: InvocationKind::Infer,
        }
    }
}

impl Default for VertexAiSettings {
    fn default() -> Self {
        let address = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self { is_on: false, address, port: None, model: None, predict: None, health: None }
    }
}

impl SageMakerSettings {
    /// Returns its address; `None` if it does not listen.
    pub fn endpoint(&self) -> Option<(IpAddr, u16)> {
        self.is_on.then(|| (self.address, self.port.unwrap_or(PORT)))
    }
}

impl VertexAiSettings {
    /// Returns its address; `None` if it does not listen.
    pub fn endpoint(&self) -> Option<(IpAddr, u16)> {
        self.is_on.then(|| (self.address, self.port.unwrap_or(PORT)))
    }

    /// Checks that it has its paths, if it is served.
    ///
    /// # Errors
    /// tritonserver's text.
    pub const fn check(&self) -> Result<(), &'static str> {
        match (&self.predict, &self.health) {
            _ if !self.is_on => Ok(()),
            // With tritonserver's mistake, which its users search for.
            (None, _) => Err("API_PREDICT_ROUTE is not defined for Vertex AI endpoint: set AIP_PREDICT_ROUTE"),
            (_, None) => Err("AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"),
            _ => Ok(()),
        }
    }
}

/// Returns a variable of the environment that is not empty, as text.
fn variable(variables: Variables, name: &str) -> Option<String> {
    let value = variables(name)?.to_string_lossy().into_owned();
    Some(value).filter(|value| !value.is_empty())
}

/// Returns true if the server is in a container for predictions of Vertex AI, which serves only
/// those by default.
pub(super) fn is_for_predictions(variables: Variables) -> bool {
    variable(variables, "AIP_MODE").is_some_and(|mode| mode == "PREDICTION")
}

impl ForeignSettings {
    /// Reads the services' variables, for the front ends that are served. A flag takes precedence.
    ///
    /// # Errors
    /// One line for a person.
    pub(super) fn read_variables(&mut self, variables: Variables) -> Result<(), String> {
        if self.sagemaker.is_on {
            read_sagemaker(&mut self.sagemaker, variables)?;
        }
        if self.vertex_ai.is_on {
            read_vertex_ai(&mut self.vertex_ai, variables)?;
        }
        #[cfg(feature = "test-hooks")]
        {
            self.test_hooks = TestHooks::read(variables)?;
        }
        Ok(())
    }
}

/// Returns the model repository of a container of Vertex AI.
pub(super) fn storage(variables: Variables) -> Option<PathBuf> {
    variable(variables, "AIP_STORAGE_URI").map(PathBuf::from)
}

fn read_sagemaker(sagemaker: &mut SageMakerSettings, variables: Variables) -> Result<(), String> {
    let named = |name: &'static str| variable(variables, name).map(|value| (name, value));
    if let (None, Some((name, value))) = (sagemaker.port, named("SAGEMAKER_BIND_TO_PORT")) {
        sagemaker.port = Some(port(name, &value)?);
    }
    if let (None, Some((name, value))) = (sagemaker.safe_ports, named("SAGEMAKER_SAFE_PORT_RANGE")) {
        sagemaker.safe_ports = Some(port_range(&value).map_err(|why| format!("{name}={value}: {why}"))?);
    }
    if let Some((name, value)) = named("SAGEMAKER_TRITON_PING_MODE") {
        let modes = [("ready", false), ("live", true)];
        let set = flags::set_one_of(&mut sagemaker.pings_live, &value, &modes);
        set.map_err(|why| format!("{name}={value}: {why}"))?;
    }
    if let Some((_, value)) = named("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME") {
        sagemaker.model = value;
    }
    if let Some((name, value)) = named("SAGEMAKER_TRITON_INFERENCE_TYPE") {
        let kinds = [
            ("infer", InvocationKind::Infer),
            ("generate", InvocationKind::Generate),
            ("generate_stream", InvocationKind::GenerateStream),
        ];
        let set = flags::set_one_of(&mut sagemaker.invocation, &value, &kinds);
        set.map_err(|why| format!("Invalid {name} '{value}': {why}"))?;
    }
    Ok(())
}

fn read_vertex_ai(vertex_ai: &mut VertexAiSettings, variables: Variables) -> Result<(), String> {
    if let (None, Some(value)) = (vertex_ai.port, variable(variables, "AIP_HTTP_PORT")) {
        vertex_ai.port = Some(port("AIP_HTTP_PORT", &value)?);
    }
    let route = |name: &str| {
        let value = variable(variables, name);
        value.map(|value| PathPattern::new(&value).map_err(|why| format!("{name}={value}: {why}"))).transpose()
    };
    (vertex_ai.predict, vertex_ai.health) = (route("AIP_PREDICT_ROUTE")?, route("AIP_HEALTH_ROUTE")?);
    Ok(())
}

fn port(name: &str, value: &str) -> Result<u16, String> {
    value.parse().map_err(|_| format!("{name}={value}: expected a port from 0 to 65535"))
}

/// Reads `FIRST-LAST`.
pub(super) fn port_range(value: &str) -> Result<(u16, u16), String> {
    let range = value.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    range.filter(|(first, last)| first <= last).ok_or_else(|| "expected two ports, as in 8081-9000".to_owned())
}

/// Refuses an endpoint at SageMaker's address whose port the host does not leave to the server.
///
/// # Errors
/// tritonserver's text.
pub(super) fn check_ports(
    sagemaker: &SageMakerSettings,
    others: &[(&str, Option<(IpAddr, u16)>)],
) -> Result<(), String> {
    let (Some((first, last)), Some(own)) = (sagemaker.safe_ports, sagemaker.endpoint()) else { return Ok(()) };
    let is_outside = |(_, other): &&(&str, Option<(IpAddr, u16)>)| {
        other.is_some_and(|(address, port)| address == own.0 && !(first..=last).contains(&port))
    };
    match others.iter().find(is_outside) {
        Some((name, Some((_, port)))) => Err(format!(
            "The server cannot listen to {name} requests at port {port}, allowed port range is [{first}, {last}]"
        )),
        _ => Ok(()),
    }
}
