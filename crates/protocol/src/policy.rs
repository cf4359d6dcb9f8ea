//! The operator's policy, applied to requests: the table of each endpoint's category and class, the
//! refusal of a request without the key that its class asks for or the header that its category
//! asks for, and the header fields that are forwarded to models. Every request of every protocol
//! passes [`admit`] once, as soon as its route is known and before anything else about it is looked
//! at.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::grpc::Rpc;
use crate::grpc::repository::RepositoryRpc;
use crate::grpc::service::ControlRpc;
use crate::infer::InferRequest;
use crate::keys::{KeyBusy, KeyClient, KeyDigest, KeyTable};
use crate::route::{HostedAction, PathEndpoint, PathTarget, RepositoryAction, Route, RouteAction};
use crate::text::TeiRpc;
use base::error::{Code, Error};
use base::metrics::KeyRefusal;
use base::policy::{ApiCategory, ApiRestrictions, ClientPolicy, KeyClass, PolicyProtocol};
use model::ModelSpec;
use model::parameters::{ParameterValue, Parameters};
use wire::message::{Fields, Method};

/// The parameters made from header fields, or the refusal of one that must not be forwarded.
pub type ForwardedFields = Result<Parameters, Error>;

/// The part of the API that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiPart {
    /// The category, whose header is required if it is restricted; `None` for the metrics, which
    /// have no restrictions.
    pub category: Option<ApiCategory>,
    /// The class that a key must give access to, if clients have keys; `None` if it is open.
    pub class: Option<KeyClass>,
}

impl ApiPart {
    /// The metrics, on their own port.
    pub const METRICS: Self = Self { category: None, class: Some(KeyClass::Metrics) };
    /// The log's last lines, on the same port: the same access as changes of the log.
    pub const LOG_LINES: Self = Self { category: Some(ApiCategory::Logging), class: Some(KeyClass::Admin) };
}

/// The operator's requirements for the clients of one protocol.
pub struct AccessRules<'p, 'k> {
    /// The protocol.
    pub protocol: PolicyProtocol,
    /// The headers that open categories.
    pub restrictions: &'p ApiRestrictions,
    /// The clients with keys; `None` if no key is required.
    pub keys: Option<&'k KeyTable>,
    /// True if changes of the server are served only on the Unix socket of `--admin-socket`.
    pub is_admin_closed: bool,
}

/// The refusal of a request.
#[derive(Debug)]
pub struct AccessRefusal {
    /// The reason, for the counters.
    pub reason: KeyRefusal,
    /// The client, if it is known.
    pub client: Option<Arc<KeyClient>>,
    /// The error for the client.
    pub error: Error,
}

impl AccessRefusal {
    fn new(reason: KeyRefusal, code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, client: None, error: Error::new(code, text) }
    }
}

/// The client of a request that was admitted.
#[derive(Clone, Copy)]
pub struct AdmittedClient<'r> {
    /// The client.
    pub client: &'r Arc<KeyClient>,
    /// Its key; `None` for clients that are admitted without one.
    pub digest: Option<KeyDigest>,
}

/// Admits a request, whose header fields `field` looks up, and returns its client if it has a key.
/// The header fields of restrictions and the keys must both be right; [`KeyClient::begin`] counts
/// the client's requests.
///
/// # Errors
/// `Forbidden` if it is served on another socket, or the key does not give access to it;
/// `Unauthenticated` without a known key; `Restricted` without the value that opens the category.
pub fn admit<'k, 'a>(
    rules: &AccessRules<'_, 'k>,
    part: ApiPart,
    field: impl Fn(&str) -> Option<&'a [u8]>,
) -> Result<Option<AdmittedClient<'k>>, Box<AccessRefusal>> {
    if rules.is_admin_closed && part.class == Some(KeyClass::Admin) {
        return Err(Box::new(AccessRefusal::new(KeyRefusal::AdminSocket, Code::Forbidden, ADMIN_CLOSED)));
    }
    let client = match (rules.keys, part.class) {
        (Some(keys), Some(class)) => Some(client_of(keys, class, &field)?),
        _ => None,
    };
    if let Some(key) = part.category.and_then(|category| rules.restrictions.key(category))
        && !field(key.header()).is_some_and(|value| key.is_opened_by(value))
    {
        let (kind, header) = (rules.protocol.restricted(), key.header());
        let text = format!("This {kind} is restricted, expecting header '{header}'");
        return Err(Box::new(AccessRefusal::new(KeyRefusal::Restricted, Code::Restricted, text)));
    }
    Ok(client)
}

const ADMIN_CLOSED: &str = "loads, unloads, traces, log settings and shared memory are served on the Unix socket of \
                            --admin-socket alone";

/// The client whose key a request has, with access to a class.
fn client_of<'r, 'a>(
    keys: &'r KeyTable,
    class: KeyClass,
    field: &impl Fn(&str) -> Option<&'a [u8]>,
) -> Result<AdmittedClient<'r>, Box<AccessRefusal>> {
    let Some(key) = key_of(field) else {
        let anonymous = keys.anonymous().filter(|client| client.has(class));
        return anonymous.map(|client| AdmittedClient { client, digest: None }).ok_or_else(|| {
            let text = format!(
                "an API key of class '{}' is needed: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'",
                class.name()
            );
            Box::new(AccessRefusal::new(KeyRefusal::Missing, Code::Unauthenticated, text))
        });
    };
    // A wrong key is reported even if a request without a key would pass: its owner should know.
    let (client, digest) = keys
        .find(key)
        .ok_or_else(|| Box::new(AccessRefusal::new(KeyRefusal::Unknown, Code::Unauthenticated, KEY_UNKNOWN)))?;
    if client.has(class) {
        return Ok(AdmittedClient { client, digest: Some(digest) });
    }
    let refusal = AccessRefusal::new(KeyRefusal::Class, Code::Forbidden, lacks(client, class));
    Err(Box::new(AccessRefusal { client: Some(Arc::clone(client)), ..refusal }))
}

/// The text for a client with an unknown key.
pub const KEY_UNKNOWN: &str = "the API key is not known";

/// The text for a client whose key does not give access to a class.
#[inline]
pub fn lacks(client: &KeyClient, class: KeyClass) -> String {
    format!("the API key '{}' lacks the class '{}'", client.name(), class.name())
}

/// The refusal of a client that has reached a bound.
pub fn busy_refusal(client: &Arc<KeyClient>, busy: KeyBusy) -> AccessRefusal {
    let who = client.title();
    let (reason, text) = if busy.is_rate {
        let wait = busy.wait.as_secs_f64();
        (KeyRefusal::Rate, format!("{who} exceeds its request rate: try again in {wait:.3} s"))
    } else {
        let most = client.concurrency_max().unwrap_or_default();
        (KeyRefusal::Concurrency, format!("{who} has {most} requests in flight (the limit)"))
    };
    let error = Error::new(Code::RateLimited, text).with_retry_after(busy.wait);
    AccessRefusal { reason, client: Some(Arc::clone(client)), error }
}

/// The refusal of a client whose texts have had more tokens than its `token_rate` allows.
pub fn tokens_refusal(client: &Arc<KeyClient>, wait: Duration) -> AccessRefusal {
    let text = format!("{} exceeds its token_rate: try again in {:.3} s", client.title(), wait.as_secs_f64());
    let error = Error::new(Code::RateLimited, text).with_retry_after(wait);
    AccessRefusal { reason: KeyRefusal::Tokens, client: Some(Arc::clone(client)), error }
}

/// The header fields that may hold a key.
const KEY_FIELDS: [&str; 2] = ["authorization", "x-api-key"];

/// The key that a request brings. Other schemes of `Authorization` are for proxies in front of the
/// server.
fn key_of<'a>(field: &impl Fn(&str) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
    let [authorization, api_key] = KEY_FIELDS;
    field(authorization).and_then(bearer).or_else(|| field(api_key)).map(<[u8]>::trim_ascii)
}

/// The token of the scheme `Bearer`, in any case (RFC 6750 §2.1, RFC 9110 §11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(BEARER.len())?;
    scheme.eq_ignore_ascii_case(BEARER).then_some(token)
}

const BEARER: &[u8] = b"Bearer ";

/// The fields that are forwarded to the model; `None` without any. If clients have keys, the fields that hold them are
/// never forwarded.
pub fn forwarded<'a>(
    policy: &ClientPolicy,
    protocol: PolicyProtocol,
    has_keys: bool,
    fields: impl FnOnce() -> Option<&'a Fields>,
) -> Option<ForwardedFields> {
    let pattern = policy.forwarded.as_ref()?;
    let mut parameters = Parameters::default();
    for (name, value) in fields()?.iter() {
        let Ok(name) = str::from_utf8(name) else { continue };
        if !pattern.is_in(name) || protocol == PolicyProtocol::Grpc && is_of_grpc(name) {
            continue;
        }
        if has_keys && KEY_FIELDS.iter().any(|field| field.eq_ignore_ascii_case(name)) {
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

/// Adds the forwarded fields to a request; they replace its own parameters of these names. Models
/// that do not look at parameters get none.
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

/// Returns true if a field belongs to gRPC's own protocol: its libraries do not show these as
/// metadata.
fn is_of_grpc(name: &str) -> bool {
    matches!(name, "te" | "content-type" | "content-length") || name.starts_with("grpc-")
}

impl PathEndpoint<'_> {
    /// The part of the API that a request by this method uses at the endpoint.
    #[inline]
    pub const fn part(&self, method: Method) -> ApiPart {
        let category = match (&self.target, method) {
            // A text for the only model; to GET, links.
            (PathTarget::Root, Method::Post) => ApiCategory::Inference,
            _ => self.category(),
        };
        ApiPart { category: Some(category), class: self.class(category, method) }
    }

    /// The class that a key must give access to: that of the category, except for requests that
    /// only read.
    const fn class(&self, category: ApiCategory, method: Method) -> Option<KeyClass> {
        match &self.target {
            PathTarget::Server(Route::Metrics) => Some(KeyClass::Metrics),
            PathTarget::Server(Route::Repository(RepositoryAction::Index)) => Some(KeyClass::Read),
            PathTarget::HostedModels | PathTarget::HostedModel(_) => match method {
                Method::Get | Method::Head => Some(KeyClass::Read),
                Method::Delete | Method::Other | Method::Post => Some(KeyClass::Admin),
            },
            PathTarget::Server(_)
            | PathTarget::Model(..)
            | PathTarget::NamedRepository
            | PathTarget::Root
            | PathTarget::V1Label(..)
            | PathTarget::V1Verb(_) => category.class(),
        }
    }

    /// The category of the endpoint.
    pub const fn category(&self) -> ApiCategory {
        match &self.target {
            PathTarget::Server(route) => route.category(),
            PathTarget::Model(_, _, action) => action.category(),
            PathTarget::Root => ApiCategory::Metadata,
            PathTarget::V1Label(..) | PathTarget::V1Verb(_) => ApiCategory::Inference,
            PathTarget::NamedRepository | PathTarget::HostedModels | PathTarget::HostedModel(_) => {
                ApiCategory::ModelRepository
            }
        }
    }
}

impl Route<'_> {
    /// The category of the route. A new route must be added here.
    const fn category(&self) -> ApiCategory {
        match self {
            Self::ServerLive | Self::ServerReady | Self::ModelReady(_) | Self::TextHealth | Self::V1Status(_) => {
                ApiCategory::Health
            }
            Self::Links
            | Self::ServerMetadata
            | Self::TextInfo(_)
            | Self::TextModels
            | Self::ModelMetadata(_)
            | Self::Models
            | Self::V1Metadata(_)
            | Self::Docs
            | Self::OpenApi
            | Self::ModelOpenApi(_) => ApiCategory::Metadata,
            Self::ModelInfer(_) | Self::ModelGenerate(..) | Self::ModelPredict(_) | Self::Text(..) => {
                ApiCategory::Inference
            }
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
    /// The category of the endpoint of a model. A new one must be added here.
    const fn category(self) -> ApiCategory {
        match self {
            Self::Config => ApiCategory::ModelConfig,
            Self::Generate(_) | Self::Infer | Self::Predict => ApiCategory::Inference,
            Self::Metadata | Self::OpenApi | Self::V1Metadata => ApiCategory::Metadata,
            Self::Ready | Self::V1Status => ApiCategory::Health,
            Self::Statistics => ApiCategory::Statistics,
            Self::Trace => ApiCategory::Trace,
        }
    }
}

impl Rpc {
    /// The part of the API that the RPC uses.
    pub fn part(self) -> ApiPart {
        let category = self.category();
        let class =
            if self == Self::Repository(RepositoryRpc::Index) { Some(KeyClass::Read) } else { category.class() };
        ApiPart { category: Some(category), class }
    }

    /// The category of the RPC. A new one must be added here. Reflection describes the interface,
    /// which tritonserver does not do: it is metadata.
    pub fn category(self) -> ApiCategory {
        match self {
            Self::Control(control) => control.category(),
            Self::ModelReady | Self::Watch => ApiCategory::Health,
            Self::ServerReflectionInfo => ApiCategory::Metadata,
            Self::Tei(TeiRpc::Info) => ApiCategory::Metadata,
            Self::ModelInfer | Self::ModelStreamInfer | Self::Tei(_) | Self::TeiStream(_) => ApiCategory::Inference,
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
    use crate::route::find;
    use base::policy::HeaderPattern;

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
        for model in ["/v1/models/m", "/v1/models/m/versions/1"] {
            check(model, "health");
            check(&format!("{model}/metadata"), "metadata");
            ["predict", "explain"].iter().for_each(|verb| check(&format!("{model}:{verb}"), "inference"));
        }
        check("/v1/models/m/labels/l:predict", "inference");
        check("/v2/models/stats", "statistics");
        check("/v2/trace/setting", "trace");
        check("/v2/models/m/trace/setting", "trace");
        for path in [
            "/",
            "/v1/models",
            "/v2/models",
            "/v2/docs",
            "/v2/docs/openapi.json",
            "/v2/models/m/versions/1/docs/openapi.json",
        ] {
            check(path, "metadata");
        }
        for path in ["/embed", "/tokenize", "/v1/classify", "/models/m", "/models/m/decode"] {
            check(path, "inference");
        }
        check("/health", "health");
        check("/info", "metadata");
        check("/models/m/info", "metadata");
        // A text for the only model is an inference, and needs the key of one.
        let root = |method| find(b"/").unwrap().part(method);
        assert_eq!(root(Method::Post), find(b"/embed").unwrap().part(Method::Post));
        assert_eq!(root(Method::Get).category.map(ApiCategory::name), Some("metadata"));
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
        check("tei.v1.Info", "Info", "metadata");
        for (service, methods) in [
            ("Embed", "Embed EmbedStream EmbedSparse EmbedSparseStream EmbedAll EmbedAllStream"),
            ("Predict", "Predict PredictStream PredictPair PredictPairStream"),
            ("Rerank", "Rerank RerankStream"),
            ("Tokenize", "Tokenize TokenizeStream Decode DecodeStream"),
        ] {
            methods.split(' ').for_each(|method| check(&format!("tei.v1.{service}"), method, "inference"));
        }
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
        let ask = |protocol, category: ApiCategory, value: Option<&'static [u8]>| {
            let rules = AccessRules { protocol, restrictions: &restrictions, keys: None, is_admin_closed: false };
            let part = ApiPart { category: Some(category), class: category.class() };
            let admitted = admit(&rules, part, |name| value.filter(|_| name == "admin-key"));
            admitted.map(|client| assert!(client.is_none())).map_err(|refusal| refusal.error)
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

    /// Sends a request with header fields, one `name: value` a line; returns the error's text, or
    /// the name of the client.
    fn asked(file: &str, class: &str, closed: bool, fields: &str) -> String {
        let file = crate::keys::file::KeyFile::read(file).unwrap();
        let (keys, mut restrictions) = (KeyTable::new(&file, None, 1), ApiRestrictions::default());
        restrictions.restrict(PolicyProtocol::Http, "trace:admin-key=v").unwrap();
        let protocol = PolicyProtocol::Http;
        let rules = AccessRules { protocol, restrictions: &restrictions, keys: Some(&keys), is_admin_closed: closed };
        let category = (class == "admin").then_some(ApiCategory::Trace);
        let field = |wanted: &str| {
            let all = fields.lines().filter_map(|line| line.split_once(": "));
            all.filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.as_bytes()).next()
        };
        match admit(&rules, ApiPart { category, class: KeyClass::from_name(class) }, field) {
            Ok(None) => "open".to_owned(),
            Ok(Some(admitted)) => admitted.client.name().to_owned(),
            Err(refusal) => format!("{:?} {}", refusal.error.code().on_wire(), refusal.error),
        }
    }

    #[test]
    fn a_class_asks_for_a_key_that_is_good_for_it() {
        let hex = |key: &str| KeyDigest::of_key(key.as_bytes()).hex();
        let (one, two) = (hex("one"), hex("two"));
        let file = format!(
            "[[key]]\nname='a'\nsha256='{one}'\nclasses=['infer','admin']\n[[key]]\nname='b'\nsha256='{two}'\nclasses='read'"
        );
        let check = |class: &str, fields: &str, want: &str| {
            let got = asked(&file, class, false, fields);
            assert!(got.starts_with(want), "{class} {fields:?}: {got}, and not {want}");
        };
        check("", "", "open"); // health
        check("infer", "authorization: Bearer one", "a");
        check("infer", "Authorization: bEARER  one ", "a");
        check("infer", "x-api-key: one", "a");
        check("infer", "authorization: Basic eDp5\nx-api-key: one", "a"); // a scheme of another server
        check("infer", "authorization: Bearer two\nx-api-key: one", "(403, 7) the API key 'b' lacks the class 'infer'");
        check("infer", "", "(401, 16) an API key of class 'infer' is needed: send 'Authorization: Bearer KEY'");
        check("infer", "authorization: Basic eDp5", "(401, 16) an API key");
        check("infer", "authorization: one", "(401, 16) an API key");
        check("infer", "authorization: Bearer ", "(401, 16) the API key is not known");
        check("infer", "authorization: Bearer One", "(401, 16) the API key is not known");
        check("infer", "x-api-key: \u{ff}", "(401, 16) the API key is not known");
        check("metrics", "x-api-key: two", "b"); // access to read is enough
        check("metrics", "x-api-key: one", "(403, 7) the API key 'a' lacks the class 'metrics'");
        check("admin", "x-api-key: one", "(403, 14) This API is restricted"); // both must be right
        check("admin", "x-api-key: one\nadmin-key: v", "a");
        check("admin", "admin-key: v", "(401, 16) ");
        let closed = asked(&file, "admin", true, "x-api-key: one\nadmin-key: v");
        assert!(closed.starts_with("(403, 7)") && closed.contains("--admin-socket"), "{closed}");
        let anonymous = format!("{file}\n[anonymous]\nclasses='read'");
        assert_eq!(asked(&anonymous, "read", false, ""), "anonymous");
        assert!(asked(&anonymous, "infer", false, "").starts_with("(401, 16) an API key"));
        assert!(asked(&anonymous, "read", false, "x-api-key: x").starts_with("(401, 16) the API key is not known"));
    }

    #[test]
    fn what_only_shows_is_for_those_who_may_read() {
        use crate::route::find;
        let check = |method: Method, path: &str, want: Option<KeyClass>| {
            assert_eq!(find(path.as_bytes()).unwrap().part(method).class, want, "{path}");
        };
        check(Method::Post, "/v2/repository/index", Some(KeyClass::Read));
        check(Method::Post, "/v2/repository/r/index", Some(KeyClass::Read));
        check(Method::Get, "/v2/repository/index", Some(KeyClass::Read));
        check(Method::Get, "/v2/models", Some(KeyClass::Read));
        check(Method::Post, "/v2/repository/models/m/load", Some(KeyClass::Admin));
        check(Method::Post, "/v2/repository/r/models/m/unload", Some(KeyClass::Admin));
        check(Method::Get, "/v2/systemsharedmemory/status", Some(KeyClass::Admin));
        check(Method::Get, "/v2/logging", Some(KeyClass::Admin));
        check(Method::Get, "/v2/health/ready", None);
        assert_eq!(Rpc::Repository(RepositoryRpc::Index).part().class, Some(KeyClass::Read));
        assert_eq!(Rpc::Repository(RepositoryRpc::Load).part().class, Some(KeyClass::Admin));
    }

    fn forwarded_of(pattern: &str, protocol: PolicyProtocol, fields: &[(&str, &[u8])]) -> String {
        let policy = ClientPolicy { forwarded: Some(HeaderPattern::new(pattern).unwrap()), ..ClientPolicy::default() };
        let mut all = Fields::new();
        fields.iter().for_each(|(name, value)| all.push(name, value));
        match forwarded(&policy, protocol, pattern.contains("(?:keys)"), || Some(&all)).unwrap() {
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
        let fields = [("Authorization", &b"Bearer k"[..]), ("X-API-Key", b"k"), ("x-own", b"1")];
        assert_eq!(forwarded_of(".*", PolicyProtocol::Http, &fields), "Authorization=Bearer k X-API-Key=k x-own=1");
        for protocol in [PolicyProtocol::Http, PolicyProtocol::Grpc] {
            assert_eq!(forwarded_of(".*|(?:keys)", protocol, &fields), "x-own=1", "no key reaches a model");
        }
        assert!(forwarded(&ClientPolicy::default(), PolicyProtocol::Http, false, || panic!("nobody asks")).is_none());
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
