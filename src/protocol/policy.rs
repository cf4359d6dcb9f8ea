//! The operator's policy, applied to requests: the table of what belongs to which category, the refusal of a request
//! without the key that its category asks for, and the header fields that go on to models. Every request of every
//! protocol comes by [`admit`] once, when its route is known and before anything else about it is looked at.

use crate::error::{Code, Error};
use crate::model::ModelSpec;
use crate::model::parameters::{ParameterValue, Parameters};
use crate::policy::{ApiCategory, ApiRestrictions, ClientPolicy, PolicyProtocol};
use crate::protocol::grpc::Rpc;
use crate::protocol::grpc::service::ControlRpc;
use crate::protocol::infer::InferRequest;
use crate::protocol::route::{HostedAction, PathEndpoint, PathTarget, Route, RouteAction};
use crate::wire::message::Fields;

/// The parameters that header fields come to, or the refusal of one that must not be forwarded.
pub type ForwardedFields = Result<Parameters, Error>;

/// Lets a request pass, whose header fields `field` looks up.
///
/// # Errors
/// `Restricted` without the value that opens the category.
pub fn admit<'a>(
    restrictions: &ApiRestrictions,
    protocol: PolicyProtocol,
    category: ApiCategory,
    field: impl FnOnce(&str) -> Option<&'a [u8]>,
) -> Result<(), Error> {
    let Some(key) = restrictions.key(category) else { return Ok(()) };
    if field(key.header()).is_some_and(|value| key.is_opened_by(value)) {
        return Ok(());
    }
    let (kind, header) = (protocol.restricted(), key.header());
    Err(Error::new(Code::Restricted, format!("This {kind} is restricted, expecting header '{header}'")))
}

/// The fields that go on to the model; `None` where none do.
pub fn forwarded<'a>(
    policy: &ClientPolicy,
    protocol: PolicyProtocol,
    fields: impl FnOnce() -> Option<&'a Fields>,
) -> Option<ForwardedFields> {
    let pattern = policy.forwarded.as_ref()?;
    let mut parameters = Parameters::default();
    for (name, value) in fields()?.iter() {
        let Ok(name) = str::from_utf8(name) else { continue };
        if !pattern.is_in(name) || protocol == PolicyProtocol::Grpc && is_of_grpc(name) {
            continue;
        }
        if is_reserved(name) {
            let text = format!("Header '{name}' is reserved for Triton usage and cannot be forwarded.");
            return Some(Err(Error::invalid(text)));
        }
        // A parameter is a text, and a field need not be UTF-8.
        parameters.set(name, ParameterValue::Text(String::from_utf8_lossy(value).into_owned()));
    }
    Some(Ok(parameters))
}

/// Adds the forwarded fields to a request; they replace what it says itself under these names. Models that do not look
/// at parameters get none.
///
/// # Errors
/// The refusal that `forwarded` holds.
pub fn forward(forwarded: Option<&ForwardedFields>, spec: &ModelSpec, request: &mut InferRequest) -> Result<(), Error> {
    let Some(forwarded) = forwarded else { return Ok(()) };
    let parameters = forwarded.as_ref().map_err(Clone::clone)?;
    if spec.takes_details() {
        parameters.0.iter().for_each(|(name, value)| request.parameters.set(name, value.clone()));
    }
    Ok(())
}

/// The names of parameters that mean something to the server itself (tritonserver's `kReservedParameterKeys`).
fn is_reserved(name: &str) -> bool {
    const KEYS: [&str; 7] =
        ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"];
    KEYS.contains(&name) || name.starts_with("triton_")
}

/// Whether a field belongs to gRPC's own protocol: its libraries do not show these as metadata.
fn is_of_grpc(name: &str) -> bool {
    matches!(name, "te" | "content-type" | "content-length") || name.starts_with("grpc-")
}

impl PathEndpoint<'_> {
    /// What the endpoint belongs to.
    pub const fn category(&self) -> ApiCategory {
        match &self.target {
            PathTarget::Server(route) => route.category(),
            PathTarget::Model(_, _, action) => action.category(),
            PathTarget::NamedRepository | PathTarget::HostedModels | PathTarget::HostedModel(_) => {
                ApiCategory::ModelRepository
            }
        }
    }
}

impl Route<'_> {
    /// What the route belongs to. A new one must say so here.
    const fn category(&self) -> ApiCategory {
        match self {
            Self::ServerLive | Self::ServerReady | Self::ModelReady(_) => ApiCategory::Health,
            Self::ServerMetadata | Self::ModelMetadata(_) | Self::OpenApi => ApiCategory::Metadata,
            Self::ModelInfer(_) | Self::ModelGenerate(..) => ApiCategory::Inference,
            Self::Logging => ApiCategory::Logging,
            Self::TraceSetting(_) => ApiCategory::Trace,
            Self::SharedMemory(..) => ApiCategory::SharedMemory,
            Self::ModelConfig(_) => ApiCategory::ModelConfig,
            Self::Repository(_) => ApiCategory::ModelRepository,
            Self::Hosted(HostedAction::Invoke(_)) => ApiCategory::Inference,
            Self::Hosted(_) => ApiCategory::ModelRepository,
            // Counts of requests by model, as the statistics.
            Self::Statistics | Self::ModelStatistics(_) | Self::Metrics => ApiCategory::Statistics,
        }
    }
}

impl RouteAction {
    /// What the endpoint of a model belongs to. A new one must say so here.
    const fn category(self) -> ApiCategory {
        match self {
            Self::Config => ApiCategory::ModelConfig,
            Self::Generate(_) | Self::Infer => ApiCategory::Inference,
            Self::Metadata => ApiCategory::Metadata,
            Self::Ready => ApiCategory::Health,
            Self::Statistics => ApiCategory::Statistics,
            Self::Trace => ApiCategory::Trace,
        }
    }
}

impl Rpc {
    /// What the RPC belongs to. A new one must say so here. Reflection describes the interface, which tritonserver does
    /// not do: it is metadata.
    pub fn category(self) -> ApiCategory {
        match self {
            Self::Control(control) => control.category(),
            Self::ModelReady | Self::Watch => ApiCategory::Health,
            Self::ServerReflectionInfo => ApiCategory::Metadata,
            Self::ModelInfer | Self::ModelStreamInfer => ApiCategory::Inference,
            Self::SharedMemory(..) => ApiCategory::SharedMemory,
            Self::Repository(_) => ApiCategory::ModelRepository,
            Self::TraceSetting => ApiCategory::Trace,
        }
    }
}

impl ControlRpc {
    const fn category(self) -> ApiCategory {
        match self {
            Self::LogSettings => ApiCategory::Logging,
            Self::HealthCheck | Self::HealthList | Self::ServerLive | Self::ServerReady => ApiCategory::Health,
            Self::ServerMetadata | Self::ModelMetadata => ApiCategory::Metadata,
            Self::ModelConfig => ApiCategory::ModelConfig,
            Self::ModelStatistics => ApiCategory::Statistics,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::HeaderPattern;
    use crate::protocol::route::find;

    #[test]
    fn every_endpoint_is_of_a_category() {
        let check = |path: &str, want: &str| {
            assert_eq!(find(path.as_bytes()).unwrap().category().name(), want, "{path}");
        };
        check("/v2", "metadata");
        check("/v2/health/live", "health");
        check("/v2/health/ready", "health");
        for model in ["/v2/models/m", "/v2/models/m/versions/1", "/v2/models/..", "/v2/models/stats/versions/1"] {
            check(model, "metadata");
            check(&format!("{model}/ready"), "health");
            check(&format!("{model}/config"), "model-config");
            check(&format!("{model}/stats"), "statistics");
            check(&format!("{model}/infer"), "inference");
            check(&format!("{model}/generate"), "inference");
            check(&format!("{model}/generate_stream"), "inference");
        }
        check("/v2/models/stats", "statistics");
        check("/v2/trace/setting", "trace");
        check("/v2/models/m/trace/setting", "trace");
        check("/v2/docs/openapi.json", "metadata");
        check("/v2/logging", "logging");
        for end in ["index", "models/m/load", "models/m/unload"] {
            check(&format!("/v2/repository/{end}"), "model-repository");
            check(&format!("/v2/repository/r/{end}"), "model-repository");
        }
        for kind in ["systemsharedmemory", "cudasharedmemory"] {
            for action in ["status", "register", "unregister"] {
                check(&format!("/v2/{kind}/{action}"), "shared-memory");
                check(&format!("/v2/{kind}/region/r/{action}"), "shared-memory");
            }
        }
    }

    #[test]
    fn every_rpc_is_of_a_category() {
        let check = |service: &str, method: &str, want: &str| {
            let rpc = Rpc::from_path(format!("/{service}/{method}").as_bytes()).unwrap();
            assert_eq!(rpc.category().name(), want, "{service} {method}");
        };
        for (methods, want) in [
            ("ServerLive ServerReady ModelReady", "health"),
            ("ServerMetadata ModelMetadata", "metadata"),
            ("ModelInfer ModelStreamInfer", "inference"),
            ("ModelConfig", "model-config"),
            ("ModelStatistics", "statistics"),
            ("RepositoryIndex RepositoryModelLoad RepositoryModelUnload", "model-repository"),
            ("SystemSharedMemoryStatus SystemSharedMemoryRegister SystemSharedMemoryUnregister", "shared-memory"),
            ("CudaSharedMemoryStatus CudaSharedMemoryRegister CudaSharedMemoryUnregister", "shared-memory"),
            ("TraceSetting", "trace"),
            ("LogSettings", "logging"),
        ] {
            methods.split(' ').for_each(|method| check("inference.GRPCInferenceService", method, want));
        }
        ["Check", "List", "Watch"].iter().for_each(|method| check("grpc.health.v1.Health", method, "health"));
        for service in ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"] {
            check(service, "ServerReflectionInfo", "metadata");
        }
    }

    #[test]
    fn a_category_asks_for_its_key() {
        let mut restrictions = ApiRestrictions::default();
        restrictions.restrict(PolicyProtocol::Http, "inference:admin-key=v").unwrap();
        let ask = |protocol, category, value: Option<&'static [u8]>| {
            admit(&restrictions, protocol, category, |name| value.filter(|_| name == "admin-key"))
        };
        let (http, inference) = (PolicyProtocol::Http, ApiCategory::Inference);
        assert_eq!(ask(http, ApiCategory::Health, None), Ok(()));
        assert_eq!(ask(http, inference, Some(b"v")), Ok(()));
        for value in [None, Some(&b"w"[..]), Some(b"")] {
            let error = ask(http, inference, value).unwrap_err();
            assert_eq!(error.text(), "This API is restricted, expecting header 'admin-key'");
            assert_eq!(error.code().on_wire(), (403, 14));
        }
        let error = ask(PolicyProtocol::Grpc, inference, None).unwrap_err();
        assert_eq!(error.text(), "This protocol is restricted, expecting header 'admin-key'");
    }

    fn forwarded_of(pattern: &str, protocol: PolicyProtocol, fields: &[(&str, &[u8])]) -> String {
        let policy = ClientPolicy { forwarded: Some(HeaderPattern::new(pattern).unwrap()), ..ClientPolicy::default() };
        let mut all = Fields::new();
        fields.iter().for_each(|(name, value)| all.push(name, value));
        match forwarded(&policy, protocol, || Some(&all)).unwrap() {
            Ok(Parameters(list)) => {
                let text = |(name, value): &(String, ParameterValue)| match value {
                    ParameterValue::Text(value) => format!("{name}={value}"),
                    value => format!("{name} {value:?}"),
                };
                list.iter().map(text).collect::<Vec<_>>().join(" ")
            }
            Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
        }
    }

    #[test]
    fn the_fields_that_match_become_parameters() {
        let fields = [("my_A", &b"1"[..]), ("other", b"2"), ("MY_b", b"\xff"), ("my_A", b"3")];
        assert_eq!(forwarded_of("my_", PolicyProtocol::Http, &fields), "my_A=3 MY_b=\u{fffd}");
        let fields = [("grpc-timeout", &b"1S"[..]), ("te", b"trailers"), ("user-agent", b"u"), ("content-type", b"c")];
        assert_eq!(forwarded_of(".*", PolicyProtocol::Grpc, &fields), "user-agent=u");
        assert_eq!(forwarded_of("^te", PolicyProtocol::Http, &fields), "te=trailers");
        assert!(forwarded(&ClientPolicy::default(), PolicyProtocol::Http, || panic!("nobody asks")).is_none());
    }

    #[test]
    fn a_reserved_field_that_matches_is_refused_and_one_that_does_not_is_ignored() {
        for name in ["sequence_id", "timeout", "headers", "triton_grpc_error", "binary_data_output"] {
            let fields = [(name, &b"1"[..])];
            let want = format!("400 Header '{name}' is reserved for Triton usage and cannot be forwarded.");
            assert_eq!(forwarded_of(".", PolicyProtocol::Http, &fields), want);
            assert_eq!(forwarded_of("x-", PolicyProtocol::Http, &fields), "");
        }
    }
}
