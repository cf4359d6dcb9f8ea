//! The REST routing table: a method and a path to a [`Route`], as Triton's endpoints. The path is
//! matched as received, except for the names in it ([`super::path`]), and not normalised. Model
//! names from the network are checked here, once. Triton's endpoints that we do not implement are
//! refused by name, so that a client learns more than "Not Found".

use crate::repository::named_repository;
use crate::shared_memory::RegionKind;
use crate::text::TextPath;
use base::error::{Code, Error};
use model::name::is_model_name;
use wire::message::Method;

/// The endpoint that a message is for. Names and versions are well formed; whether the model exists is not
/// known here.
///
/// ```
/// use protocol::route::{ModelPath, Route, route};
/// use wire::message::Method;
///
/// let found = route(Method::Post, b"/v2/models/resnet/versions/3/infer").unwrap();
/// assert_eq!(found, Route::ModelInfer(ModelPath { name: "resnet", version: Some(3) }));
/// assert_eq!(route(Method::Get, b"/v3").unwrap_err().text(), "Not Found");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// `GET /`.
    Links,
    /// `GET /v2`.
    ServerMetadata,
    /// `GET /v2/health/live`.
    ServerLive,
    /// `GET /v2/health/ready`.
    ServerReady,
    /// `GET /v2/docs`.
    Docs,
    /// `GET /v2/docs/openapi.json`.
    OpenApi,
    /// `GET /v2/models/M[/versions/V]/docs/openapi.json`.
    ModelOpenApi(ModelPath<'a>),
    /// `GET /v2/models/M[/versions/V]`.
    ModelMetadata(ModelPath<'a>),
    /// `GET /v2/models/M[/versions/V]/ready`.
    ModelReady(ModelPath<'a>),
    /// `GET /v2/models/M[/versions/V]/config`.
    ModelConfig(ModelPath<'a>),
    /// `POST /v2/models/M[/versions/V]/infer`.
    ModelInfer(ModelPath<'a>),
    /// `GET` and `POST /v2/logging`.
    Logging,
    /// `POST /v2/models/M[/versions/V]/generate` and `…/generate_stream`.
    ModelGenerate(ModelPath<'a>, Delivery),
    /// `GET /v2/models`.
    Models,
    /// `GET /v2/models/stats`.
    Statistics,
    /// `GET /v2/models/M[/versions/V]/stats`.
    ModelStatistics(ModelPath<'a>),
    /// Endpoints below `/v2/repository`.
    Repository(RepositoryAction<'a>),
    /// Endpoints below `/v2/systemsharedmemory` and `/v2/cudasharedmemory`; with the region's name.
    SharedMemory(RegionKind, RegionAction, &'a str),
    /// `GET` and `POST /v2[/models/M]/trace/setting`; without a model the setting of the server.
    TraceSetting(Option<ModelPath<'a>>),
    /// `POST /embed`, `/v1/embeddings` and others of text models, also behind `/models/M`; with the name in the path.
    Text(TextPath, Option<&'a str>),
    /// `GET /health`: as TEI answers it.
    TextHealth,
    /// `GET /info` and `/models/M/info`: a model of texts, as TEI describes it; with the name in the path.
    TextInfo(Option<&'a str>),
    /// `GET /v1/models`.
    TextModels,
    /// `GET /v1/models/M[/versions/V]`.
    V1Status(ModelPath<'a>),
    /// `GET /v1/models/M[/versions/V]/metadata`.
    V1Metadata(ModelPath<'a>),
    /// `POST /v1/models/M[/versions/V]:predict`.
    ModelPredict(ModelPath<'a>),
    /// The metrics, where the Vertex AI front end leads to them.
    Metrics,
    /// Endpoints below `/models` of the SageMaker front end.
    Hosted(HostedAction<'a>),
}

/// An operation on the models that the host loads by their paths: SageMaker's multi-model contract. The names are the
/// host's own, and only compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostedAction<'a> {
    /// `GET /models`.
    List,
    /// `POST /models`.
    Load,
    /// `GET /models/M`.
    Describe(&'a str),
    /// `DELETE /models/M`.
    Unload(&'a str),
    /// `POST /models/M/invoke`.
    Invoke(&'a str),
}

/// An operation on a shared memory region, or on all regions if the name is empty. `protocol::shared_memory`
/// checks the name, since Triton refuses it with another text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionAction {
    /// `GET …/status`.
    Status,
    /// `POST …/register`.
    Register,
    /// `POST …/unregister`.
    Unregister,
}

/// An operation on the model repository. `protocol::repository` checks the name, since Triton refuses it with
/// another text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepositoryAction<'a> {
    /// `GET` and `POST /v2/repository[/R]/index`.
    Index,
    /// `POST /v2/repository/models/M/load`.
    Load(&'a str),
    /// `POST /v2/repository/models/M/unload`.
    Unload(&'a str),
}

/// The way in which the responses to a generate request are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The only one, as the reply.
    Single,
    /// As events, each when it comes.
    Stream,
}

/// A model, and one of its versions if the path names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPath<'a> {
    /// The name.
    pub name: &'a str,
    /// The version.
    pub version: Option<u64>,
}

/// The methods that an endpoint accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AllowedMethods {
    /// GET, and HEAD, which probes send.
    Get,
    /// POST.
    Post,
    /// Both.
    GetOrPost,
    /// GET, HEAD and DELETE.
    GetOrDelete,
}

/// The target of a path, with the methods that it accepts.
pub struct PathEndpoint<'a> {
    pub(super) methods: AllowedMethods,
    pub(super) target: PathTarget<'a>,
    /// True if the endpoint is closed on this path: its state is managed elsewhere.
    pub(super) is_closed: bool,
}

/// The target of a path.
pub(super) enum PathTarget<'a> {
    /// `/`: links, or a text for the only model of texts.
    Root,
    /// An endpoint of the server.
    Server(Route<'a>),
    /// An endpoint of a model.
    Model(&'a str, Option<&'a str>, RouteAction),
    /// An endpoint that names one repository, which Triton does not support.
    NamedRepository,
    /// The models that the host loads by their paths.
    HostedModels,
    /// One of them.
    HostedModel(&'a str),
    /// A verb of KServe V1 or TensorFlow Serving that is not served.
    V1Verb(&'a str),
    /// A version of a model by its label, as TensorFlow Serving has it.
    V1Label(&'a str, &'a str),
}

/// An endpoint of one model.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteAction {
    Config,
    Generate(Delivery),
    Infer,
    Metadata,
    OpenApi,
    Predict,
    Ready,
    Statistics,
    Trace,
    V1Metadata,
    V1Status,
}

/// The route for a method and a path.
///
/// # Errors
///
/// Those of [`find`] and of [`PathEndpoint::route`].
#[inline]
pub fn route(method: Method, path: &[u8]) -> Result<Route<'_>, Error> {
    find(path)?.route(method)
}

/// The endpoint that a path names.
///
/// # Errors
///
/// `NotFound` for an unknown path.
#[inline]
pub fn find(path: &[u8]) -> Result<PathEndpoint<'_>, Error> {
    let found = std::str::from_utf8(path).ok().and_then(find_endpoint).ok_or_else(unknown_path);
    found.map(|(methods, target)| PathEndpoint { methods, target, is_closed: false })
}

impl<'a> PathEndpoint<'a> {
    /// The methods that it accepts, as the field `Allow` lists them (RFC 9110 §10.2.1).
    #[inline]
    pub const fn allow(&self) -> &'static str {
        self.methods.allow()
    }

    /// Returns the name of the model that the path asks for an inference, as it came.
    pub const fn inferred_model(&self) -> Option<&'a str> {
        match self.target {
            PathTarget::Model(name, _, RouteAction::Infer | RouteAction::Generate(_) | RouteAction::Predict) => {
                Some(name)
            }
            PathTarget::Server(Route::Text(_, name)) => name,
            PathTarget::Server(Route::ModelInfer(ModelPath { name, .. })) => Some(name),
            _ => None,
        }
    }

    /// Returns the path of the text interfaces that it is by this method: it has the form of refusals.
    pub fn text_path(&self, method: Method) -> Option<TextPath> {
        match self.target {
            PathTarget::Server(Route::Text(path, _)) => Some(path),
            PathTarget::Server(Route::TextInfo(_)) => Some(TextPath::Embed),
            PathTarget::Root if method == Method::Post => Some(TextPath::Own),
            _ => None,
        }
    }

    /// The route by this method.
    ///
    /// # Errors
    ///
    /// `MethodNotAllowed` for a method that it does not accept, `Restricted` if it is closed on
    /// this path, `Unsupported` for an endpoint that is not implemented, `NotFound` for a malformed
    /// model name, `InvalidArgument` for a malformed version.
    pub fn route(self, method: Method) -> Result<Route<'a>, Error> {
        if !self.methods.allows(method) {
            return Err(Error::new(Code::MethodNotAllowed, "Method Not Allowed"));
        }
        if self.is_closed {
            let text = "a redirect changes nothing in the server: ask for this on the HTTP port";
            return Err(Error::new(Code::Restricted, text));
        }
        self.target.route(method)
    }
}

impl<'a> PathTarget<'a> {
    fn route(self, method: Method) -> Result<Route<'a>, Error> {
        match self {
            PathTarget::Server(Route::Text(_, Some(name)) | Route::TextInfo(Some(name))) if !is_model_name(name) => {
                Err(unknown_model(name))
            }
            PathTarget::Root if method == Method::Post => Ok(Route::Text(TextPath::Own, None)),
            PathTarget::Root => Ok(Route::Links),
            PathTarget::Server(route) => Ok(route),
            PathTarget::NamedRepository => Err(named_repository()),
            PathTarget::V1Verb(verb) => {
                Err(Error::unsupported(format!("':{verb}' is not served here: models answer ':predict'")))
            }
            PathTarget::V1Label(name, label) => Err(Error::unsupported(format!(
                "versions have no labels here, such as '{label}': name one as in /v1/models/{name}/versions/1, or none for \
                 the one that the model's policy chooses"
            ))),
            PathTarget::HostedModels => {
                let action = if method == Method::Post { HostedAction::Load } else { HostedAction::List };
                Ok(Route::Hosted(action))
            }
            PathTarget::HostedModel(name) => {
                let is_unload = method == Method::Delete;
                let action = if is_unload { HostedAction::Unload(name) } else { HostedAction::Describe(name) };
                Ok(Route::Hosted(action))
            }
            PathTarget::Model(name, version, action) => {
                let version = version.map(version_number).transpose()?;
                if !is_model_name(name) {
                    return Err(match action {
                        RouteAction::Statistics => unavailable_model(name),
                        RouteAction::Trace => untraced_model(name),
                        _ => unknown_model(name),
                    });
                }
                let path = ModelPath { name, version };
                Ok(match action {
                    RouteAction::Config => Route::ModelConfig(path),
                    RouteAction::Generate(delivery) => Route::ModelGenerate(path, delivery),
                    RouteAction::Infer => Route::ModelInfer(path),
                    RouteAction::Metadata => Route::ModelMetadata(path),
                    RouteAction::OpenApi => Route::ModelOpenApi(path),
                    RouteAction::Predict => Route::ModelPredict(path),
                    RouteAction::Ready => Route::ModelReady(path),
                    RouteAction::Statistics => Route::ModelStatistics(path),
                    RouteAction::Trace => Route::TraceSetting(Some(path)),
                    RouteAction::V1Metadata => Route::V1Metadata(path),
                    RouteAction::V1Status => Route::V1Status(path),
                })
            }
        }
    }
}

/// Triton's error for an unknown model.
#[inline]
pub fn unknown_model(name: &str) -> Error {
    Error::not_found(format!("Request for unknown model: '{name}' is not found"))
}

/// Triton's error for the statistics of an unknown model.
#[inline]
pub fn unavailable_model(name: &str) -> Error {
    Error::invalid(format!("requested model '{name}' is not available"))
}

/// Triton's error for the trace setting of a model that is not served.
#[inline]
pub fn untraced_model(name: &str) -> Error {
    Error::invalid(format!("Request for unknown model : {name}"))
}

/// Parses a version that a client gives as text; `None` if empty. For both protocols.
///
/// # Errors
///
/// `InvalidArgument` if it is not a number between 0 and `i64::MAX`.
#[inline]
pub fn version_of(text: &str) -> Result<Option<u64>, Error> {
    if text.is_empty() { Ok(None) } else { version_number(text).map(Some) }
}

fn version_number(text: &str) -> Result<u64, Error> {
    // Signed and without a plus sign, as Triton's `stol` check accepts it; Rust's `parse` would take the sign.
    let version = text.parse::<i64>().ok().filter(|_| !text.starts_with('+')).ok_or_else(|| {
        Error::invalid(format!(
            "failed to get model version from specified version string '{text}' (details: stol), version should be \
             an integral value > 0"
        ))
    })?;
    u64::try_from(version).map_err(|_| {
        Error::invalid(format!("invalid model version specified '{text}' , version should be an integral value > 0"))
    })
}

impl AllowedMethods {
    fn allows(self, method: Method) -> bool {
        match method {
            Method::Get => self != Self::Post,
            Method::Head => self != Self::Post,
            Method::Post => matches!(self, Self::Post | Self::GetOrPost),
            Method::Delete => self == Self::GetOrDelete,
            Method::Other => false,
        }
    }

    /// As the field `Allow` lists them.
    const fn allow(self) -> &'static str {
        match self {
            Self::Get => "GET, HEAD",
            Self::Post => "POST",
            Self::GetOrPost => "GET, HEAD, POST",
            Self::GetOrDelete => "GET, HEAD, DELETE",
        }
    }
}

fn unknown_path() -> Error {
    Error::not_found("Not Found")
}

/// The table of paths; `None` for an unknown one.
pub(super) fn find_endpoint(path: &str) -> Option<(AllowedMethods, PathTarget<'_>)> {
    let served = |route| Some((AllowedMethods::Get, PathTarget::Server(route)));
    if path == "/" {
        return Some((AllowedMethods::GetOrPost, PathTarget::Root));
    }
    if let Some(text) = text_endpoint(path) {
        return Some(text);
    }
    if let Some(rest) = path.strip_prefix("/v1/models/") {
        return v1_model(rest);
    }
    let mut parts = path.strip_prefix("/v2")?.split('/');
    // Text between `v2` and the first slash means another word, as in `/v2x`.
    if !parts.next()?.is_empty() {
        return None;
    }
    let parts: smallvec::SmallVec<[&str; 8]> = parts.collect();
    match parts.as_slice() {
        [] => served(Route::ServerMetadata),
        ["docs"] => served(Route::Docs),
        ["docs", "openapi.json"] => served(Route::OpenApi),
        ["health", "live"] => served(Route::ServerLive),
        ["health", "ready"] => served(Route::ServerReady),
        ["models"] => served(Route::Models),
        // Before the paths of models, so a model named `stats` has no metadata endpoint, but all others.
        ["models", "stats"] => served(Route::Statistics),
        ["models", name, "versions", version, rest @ ..] if is_version(version) => model(name, Some(version), rest),
        ["models", name, rest @ ..] => model(name, None, rest),
        ["logging"] => Some((AllowedMethods::GetOrPost, PathTarget::Server(Route::Logging))),
        ["trace", "setting"] => Some((AllowedMethods::GetOrPost, PathTarget::Server(Route::TraceSetting(None)))),
        ["repository", rest @ ..] => repository(rest),
        ["systemsharedmemory", rest @ ..] => shared_memory(RegionKind::System, rest),
        ["cudasharedmemory", rest @ ..] => shared_memory(RegionKind::Cuda, rest),
        _ => None,
    }
}

/// The endpoints of text models: of the one that the path or the body names, or of the only one.
fn text_endpoint(path: &str) -> Option<(AllowedMethods, PathTarget<'_>)> {
    let (name, rest) = match path.strip_prefix("/models/") {
        Some("") => return None,
        Some(path) => {
            let (name, rest) = path.find('/').map_or((path, ""), |at| path.split_at(at));
            (Some(name), rest)
        }
        None => (None, path),
    };
    let read = |route| Some((AllowedMethods::Get, PathTarget::Server(route)));
    let path = match (rest, name) {
        ("/v1/models", None) => return read(Route::TextModels),
        ("/health", None) => return read(Route::TextHealth),
        ("/info", name) => return read(Route::TextInfo(name)),
        ("", Some(_)) => TextPath::Own,
        (rest, _) => TextPath::from_url(rest)?,
    };
    Some((AllowedMethods::Post, PathTarget::Server(Route::Text(path, name))))
}

/// The endpoints of a model of KServe V1 and TensorFlow Serving, by the path behind `/v1/models/`. A verb follows the last
/// part; a name may have a colon of its own.
fn v1_model(path: &str) -> Option<(AllowedMethods, PathTarget<'_>)> {
    let is_verb = |(_, verb): &(&str, &str)| ["classify", "explain", "predict", "regress"].contains(verb);
    let (path, verb) = path.rsplit_once(':').filter(is_verb).map_or((path, None), |(path, verb)| (path, Some(verb)));
    let parts: smallvec::SmallVec<[&str; 4]> = path.split('/').collect();
    let (name, version, rest) = match parts.as_slice() {
        ["", ..] => return None,
        [name, "labels", label] | [name, "labels", label, "metadata"] if !label.is_empty() => {
            return Some((AllowedMethods::GetOrPost, PathTarget::V1Label(name, label)));
        }
        [name, "versions", version, rest @ ..] if is_version(version) => (*name, Some(*version), rest),
        [name, rest @ ..] => (*name, None, rest),
        [] => return None,
    };
    let (methods, action) = match (rest, verb) {
        ([], None) => (AllowedMethods::Get, RouteAction::V1Status),
        (["metadata"], None) => (AllowedMethods::Get, RouteAction::V1Metadata),
        ([], Some("predict")) => (AllowedMethods::Post, RouteAction::Predict),
        ([], Some(verb)) => return Some((AllowedMethods::Post, PathTarget::V1Verb(verb))),
        _ => return None,
    };
    Some((methods, PathTarget::Model(name, version, action)))
}

/// The endpoints of a model; `rest` is the path after its name and version.
fn model<'a>(name: &'a str, version: Option<&'a str>, rest: &[&'a str]) -> Option<(AllowedMethods, PathTarget<'a>)> {
    if name.is_empty() {
        return None;
    }
    let (methods, action) = match rest {
        [] => (AllowedMethods::Get, RouteAction::Metadata),
        ["ready"] => (AllowedMethods::Get, RouteAction::Ready),
        ["config"] => (AllowedMethods::Get, RouteAction::Config),
        ["docs", "openapi.json"] => (AllowedMethods::Get, RouteAction::OpenApi),
        ["infer"] => (AllowedMethods::Post, RouteAction::Infer),
        ["generate"] => (AllowedMethods::Post, RouteAction::Generate(Delivery::Single)),
        ["generate_stream"] => (AllowedMethods::Post, RouteAction::Generate(Delivery::Stream)),
        ["stats"] => (AllowedMethods::Get, RouteAction::Statistics),
        // As in Triton, a version has none of its own.
        ["trace", "setting"] if version.is_none() => (AllowedMethods::GetOrPost, RouteAction::Trace),
        _ => return None,
    };
    Some((methods, PathTarget::Model(name, version, action)))
}

/// The endpoints below `/v2/repository`; a repository's name may come first.
fn repository<'a>(rest: &[&'a str]) -> Option<(AllowedMethods, PathTarget<'a>)> {
    let served = |action| Some((AllowedMethods::Post, PathTarget::Server(Route::Repository(action))));
    match rest {
        ["index"] | [_, "index"] => {
            let index = Route::Repository(RepositoryAction::Index);
            Some((AllowedMethods::GetOrPost, PathTarget::Server(index)))
        }
        ["models", name, "load"] if !name.is_empty() => served(RepositoryAction::Load(name)),
        ["models", name, "unload"] if !name.is_empty() => served(RepositoryAction::Unload(name)),
        [_, "models", name, "load" | "unload"] if !name.is_empty() => {
            Some((AllowedMethods::Post, PathTarget::NamedRepository))
        }
        _ => None,
    }
}

/// The endpoints below `/v2/systemsharedmemory` and `/v2/cudasharedmemory`.
fn shared_memory<'a>(kind: RegionKind, rest: &[&'a str]) -> Option<(AllowedMethods, PathTarget<'a>)> {
    let (region, action) = match rest {
        [action] => ("", *action),
        ["region", region, action] if !region.is_empty() => (*region, *action),
        _ => return None,
    };
    let served = |methods, action| Some((methods, PathTarget::Server(Route::SharedMemory(kind, action, region))));
    match action {
        "status" => served(AllowedMethods::Get, RegionAction::Status),
        "register" => served(AllowedMethods::Post, RegionAction::Register),
        "unregister" => served(AllowedMethods::Post, RegionAction::Unregister),
        _ => None,
    }
}

fn is_version(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(method: &str, path: &str) -> String {
        match route(Method::from_token(method.as_bytes()), path.as_bytes()) {
            Ok(route) => format!("{route:?}").replace("ModelPath ", ""),
            Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
        }
    }

    #[test]
    fn paths_and_methods_lead_to_endpoints() {
        let check = |method: &str, path: &str, want: &str| assert_eq!(outcome(method, path), want, "{method} {path}");
        check("GET", "/", "Links");
        check("GET", "/v2", "ServerMetadata");
        check("GET", "/v2/docs", "Docs");
        check("GET", "/v2/models/m/docs/openapi.json", "ModelOpenApi({ name: \"m\", version: None })");
        check(
            "GET",
            "/v2/models/docs/versions/2/docs/openapi.json",
            "ModelOpenApi({ name: \"docs\", version: Some(2) })",
        );
        check("HEAD", "/v2/health/live", "ServerLive");
        check("GET", "/v2/health/ready", "ServerReady");
        check("GET", "/v2/models/a.b-c_1", "ModelMetadata({ name: \"a.b-c_1\", version: None })");
        check("GET", "/v2/models/m/versions/3", "ModelMetadata({ name: \"m\", version: Some(3) })");
        check("GET", "/v2/models/m/ready", "ModelReady({ name: \"m\", version: None })");
        check("HEAD", "/v2/models/m/versions/1/ready", "ModelReady({ name: \"m\", version: Some(1) })");
        check("POST", "/v2/models/m/generate", "ModelGenerate({ name: \"m\", version: None }, Single)");
        check(
            "POST",
            "/v2/models/m/versions/2/generate_stream",
            "ModelGenerate({ name: \"m\", version: Some(2) }, Stream)",
        );
        check("GET", "/v2/models/m/config", "ModelConfig({ name: \"m\", version: None })");
        check("POST", "/v2/models/m/infer", "ModelInfer({ name: \"m\", version: None })");
        check("POST", "/v2/models/m/versions/12/infer", "ModelInfer({ name: \"m\", version: Some(12) })");
        check("GET", "/v2/models/stats", "Statistics");
        check("GET", "/v2/models/m/stats", "ModelStatistics({ name: \"m\", version: None })");
        check("GET", "/v2/models/m/versions/1/stats", "ModelStatistics({ name: \"m\", version: Some(1) })");
        check("GET", "/v2/models/../stats", "400 requested model '..' is not available");
        check("POST", "/v2/models/stats", "405 Method Not Allowed");
        check("GET", "/v2/logging", "Logging");
        check("POST", "/v2/logging", "Logging");
        check("POST", "/v2/repository/index", "Repository(Index)");
        check("POST", "/v2/repository/r/index", "Repository(Index)");
        check("GET", "/v2/repository/index", "Repository(Index)");
        check("HEAD", "/v2/repository/r/index", "Repository(Index)");
        check("GET", "/v2/models", "Models");
        check("POST", "/v2/models", "405 Method Not Allowed");
        check("POST", "/v2/repository/models/m/load", "Repository(Load(\"m\"))");
        check("POST", "/v2/repository/models/../unload", "Repository(Unload(\"..\"))");
        check("GET", "/v2/systemsharedmemory/status", "SharedMemory(System, Status, \"\")");
        check("POST", "/v2/systemsharedmemory/register", "SharedMemory(System, Register, \"\")");
        check("POST", "/v2/cudasharedmemory/region/r/register", "SharedMemory(Cuda, Register, \"r\")");
        check("POST", "/v2/cudasharedmemory/region/../unregister", "SharedMemory(Cuda, Unregister, \"..\")");
        check("GET", "/v2/trace/setting", "TraceSetting(None)");
        check("POST", "/v2/models/m/trace/setting", "TraceSetting(Some({ name: \"m\", version: None }))");
        check("GET", "/v2/models/../trace/setting", "400 Request for unknown model : ..");
        check("GET", "/v2/models/m/versions/1/trace/setting", "404 Not Found");
        check("POST", "/", "Text(Own, None)");
        check("POST", "/models/m", "Text(Own, Some(\"m\"))");
        check("POST", "/tokenize", "Text(Tokenize, None)");
        check("POST", "/models/m/v1/classify", "Text(Classify, Some(\"m\"))");
        check("GET", "/models/m/info", "TextInfo(Some(\"m\"))");
        check("GET", "/health", "TextHealth");
        check("GET", "/info", "TextInfo(None)");
        check("POST", "/models/", "404 Not Found");
        check("POST", "/vertex", "Text(Vertex, None)");
        check("POST", "/models//embed", "404 Request for unknown model: '' is not found");
        check("GET", "/models/m/health", "404 Not Found");
        // A model may have the name of an endpoint.
        check("GET", "/v2/models/stats/stats", "ModelStatistics({ name: \"stats\", version: None })");
        check("POST", "/v2/models/stats/infer", "ModelInfer({ name: \"stats\", version: None })");
        check("GET", "/v2/models/versions/ready", "ModelReady({ name: \"versions\", version: None })");
    }

    #[test]
    fn paths_of_kserve_v1_and_tensorflow_serving_lead_to_endpoints() {
        let check = |method: &str, path: &str, want: &str| assert_eq!(outcome(method, path), want, "{method} {path}");
        check("GET", "/v1/models", "TextModels");
        check("GET", "/v1/models/m", "V1Status({ name: \"m\", version: None })");
        check("HEAD", "/v1/models/m/versions/2", "V1Status({ name: \"m\", version: Some(2) })");
        check("GET", "/v1/models/m/metadata", "V1Metadata({ name: \"m\", version: None })");
        check("GET", "/v1/models/m/versions/2/metadata", "V1Metadata({ name: \"m\", version: Some(2) })");
        check("POST", "/v1/models/m:predict", "ModelPredict({ name: \"m\", version: None })");
        check("POST", "/v1/models/m/versions/2:predict", "ModelPredict({ name: \"m\", version: Some(2) })");
        check("POST", "/v1/models/a:b:predict", "ModelPredict({ name: \"a:b\", version: None })");
        check("GET", "/v1/models/a:b", "V1Status({ name: \"a:b\", version: None })");
        check("POST", "/v1/models/..:predict", "404 Request for unknown model: '..' is not found");
        for verb in ["classify", "explain", "regress"] {
            let want = format!("501 ':{verb}' is not served here: models answer ':predict'");
            check("POST", &format!("/v1/models/m:{verb}"), &want);
            check("POST", &format!("/v1/models/m/versions/1:{verb}"), &want);
            check("GET", &format!("/v1/models/m:{verb}"), "405 Method Not Allowed");
        }
        let label = "501 versions have no labels here, such as 'stable': name one as in /v1/models/m/versions/1, or none \
                     for the one that the model's policy chooses";
        for (method, end) in [("POST", ":predict"), ("GET", ""), ("GET", "/metadata")] {
            check(method, &format!("/v1/models/m/labels/stable{end}"), label);
        }
    }

    #[test]
    fn other_paths_are_unknown_and_other_methods_are_refused() {
        for path in [
            "",
            "//",
            "*",
            "/v2/docs/",
            "/v2/models/m/docs",
            "/v1",
            "/v2/",
            "//v2",
            "/v2x",
            "/v2//health/live",
            "/v2/health",
            "/v2/health/live/",
            "/v2/models/",
            "/v2/models//ready",
            "/v2/models/m/",
            "/v2/models/m/versions",
            "/v2/models/m/versions/",
            "/v2/models/m/versions/abc",
            "/v2/models/m/versions/-1/infer",
            "/v2/models/m/versions/1/",
            "/V2",
            "/v2/models/m/other",
            "/v2/models/m/infer/x",
            "/v1/models/",
            "/v1/models/:predict",
            "/v1/models/m/",
            "/v1/models/m/versions",
            "/v1/models/m/versions/x:predict",
            "/v1/models/m/labels/",
            "/v1/models/m/metadata:predict",
            "/v1/models/m/other",
            "/v2/repository",
            "/v2/systemsharedmemory",
            "/v2/systemsharedmemory/region/status",
            "/v2/systemsharedmemory/region//status",
            "/v2/systemsharedmemory/other",
        ] {
            assert_eq!(outcome("GET", path), "404 Not Found", "{path}");
        }
        assert!(route(Method::Get, b"/v2/models/\xff").is_err());
        for (method, path) in [
            ("POST", "/v2"),
            ("OPTIONS", "/v2/health/live"),
            ("POST", "/v2/models/m"),
            ("GET", "/v2/models/m/infer"),
            ("HEAD", "/v2/models/m/infer"),
            ("GET", "/v1/models/m:predict"),
            ("POST", "/v1/models/m"),
            ("POST", "/v1/models/m/metadata"),
            ("GET", "/v2/repository/models/m/load"),
            ("GET", "/v2/systemsharedmemory/register"),
            ("POST", "/v2/cudasharedmemory/status"),
            ("get", "/v2"),
        ] {
            assert_eq!(outcome(method, path), "405 Method Not Allowed", "{method} {path}");
        }
    }

    #[test]
    fn endpoints_that_name_a_repository_are_refused() {
        for (method, path, word) in [
            ("POST", "/v2/repository/r/models/m/load", "'repository_name' specification is not supported"),
            ("POST", "/v2/repository/r/models/m/unload", "'repository_name' specification is not supported"),
        ] {
            let got = outcome(method, path);
            assert!(got.starts_with("501 ") && got.contains(word), "{method} {path}: {got}");
        }
    }

    #[test]
    fn names_and_versions_are_checked_once_here() {
        let check = |path: &str, want: &str| assert_eq!(outcome("GET", path), want, "{path}");
        check("/v2/models/..", "404 Request for unknown model: '..' is not found");
        check("/v2/models/./ready", "404 Request for unknown model: '.' is not found");
        check("/v2/models/a\"b", "404 Request for unknown model: 'a\"b' is not found");
        check("/v2/models/ ab", "404 Request for unknown model: ' ab' is not found");
        check(
            "/v2/models/FP32_-1,-1",
            "ModelMetadata(ModelPath { name: \"FP32_-1,-1\", version: None })".replace("ModelPath ", "").as_str(),
        );
        assert!(outcome("GET", &format!("/v2/models/{}", "n".repeat(255))).starts_with("ModelMetadata"));
        assert!(outcome("GET", &format!("/v2/models/{}", "n".repeat(256))).starts_with("404 Request"));
        check(
            "/v2/models/m/versions/99999999999999999999",
            "400 failed to get model version from specified version string '99999999999999999999' (details: stol), \
             version should be an integral value > 0",
        );
        assert_eq!(version_of(""), Ok(None));
        assert_eq!(version_of("2"), Ok(Some(2)));
        assert!(version_of("abc").is_err() && version_of("+1").is_err());
        assert_eq!(version_of("0"), Ok(Some(0)));
        let text = "invalid model version specified '-1' , version should be an integral value > 0";
        assert_eq!(version_of("-1"), Err(Error::invalid(text)));
    }
}
