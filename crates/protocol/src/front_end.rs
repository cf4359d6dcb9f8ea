//! The front ends of hosting services, SageMaker and Vertex AI, as tritonserver has them
//! (`sagemaker_server.cc`, `vertex_ai_server.cc`): other paths to the same routes, each on a port
//! of its own. They only find a route; the operator's policy and the answers are the same as for
//! every other request. The size of a body's JSON part is in its content type, since the services
//! pass on no header field of their own choice.

use bytes::Bytes;

use crate::rest::HeaderLength;
use crate::route::{
    AllowedMethods, Delivery, HostedAction, PathEndpoint, PathTarget, RegionAction, RepositoryAction, Route,
    RouteAction, find, find_endpoint,
};
use base::error::Error;
use base::policy::PathPattern;
use wire::message::{Fields, Reply};

/// The header field that redirects a prediction of Vertex AI to another endpoint: its path, without
/// the first slash.
const REDIRECT: &str = "X-Vertex-Ai-Triton-Redirect";

/// The set of paths that a port serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrontEnd {
    /// The paths of the protocol and its extensions, below `/v2`.
    #[default]
    Kserve,
    /// SageMaker's.
    SageMaker,
    /// Vertex AI's.
    VertexAi,
}

/// The settings of the front ends; the paths of a front end that is `None` are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontEnds {
    /// SageMaker.
    pub sagemaker: Option<SageMakerPaths>,
    /// Vertex AI.
    pub vertex_ai: Option<VertexAiPaths>,
}

/// The targets of SageMaker's paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SageMakerPaths {
    /// True if `/ping` reports only that the server is up, not that it is ready.
    pub pings_live: bool,
    /// The model of `/invocations`.
    pub model: String,
    /// The kind of request that `/invocations` takes.
    pub invocation: Invocation,
    /// The directory that the models of `POST /models` must be below.
    pub models_root: String,
}

/// The kind of request that an invocation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Invocation {
    /// An inference.
    #[default]
    Infer,
    /// A generate request.
    Generate(Delivery),
}

/// The paths of Vertex AI and their targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VertexAiPaths {
    /// The path of predictions.
    pub predict: PathPattern,
    /// The path of the health probe.
    pub health: PathPattern,
    /// The model of a prediction that is not redirected.
    pub model: String,
    /// True if a redirect may lead to the metrics: the server serves them.
    pub shows_metrics: bool,
}

impl FrontEnd {
    /// The path to which a request asks to be redirected.
    pub fn redirect(self, fields: &Fields) -> Option<Vec<u8>> {
        if self != Self::VertexAi {
            return None;
        }
        fields.get(REDIRECT).map(|value| [b"/", value].concat())
    }

    /// The field that holds the size of a body's JSON part, in lower case.
    pub const fn length_field(self) -> &'static str {
        match self {
            Self::Kserve => "inference-header-content-length",
            Self::SageMaker | Self::VertexAi => "content-type",
        }
    }

    /// The size of the JSON part of a body of `body_size` bytes, from the value of
    /// [`Self::length_field`].
    ///
    /// # Errors
    /// `InvalidArgument`, with tritonserver's texts, if the value has no size or one beyond the
    /// body.
    pub fn header_length(self, value: Option<&[u8]>, body_size: usize) -> Result<HeaderLength, Error> {
        let Some(binary) = self.binary_type() else { return HeaderLength::from_field(value) };
        let text = String::from_utf8_lossy(value.unwrap_or_default());
        let Some(place) = text.to_ascii_lowercase().find(binary) else { return Ok(HeaderLength::Absent) };
        if place != 0 {
            return Err(Error::invalid(format!(
                "expect MIME type for binary data starts with '{binary}', got: {text}"
            )));
        }
        let given = text.get(binary.len()..).unwrap_or_default();
        let number = leading_number(given)
            .ok_or_else(|| Error::invalid(format!("Unable to parse inference header size, got: {given}")))?;
        let size: i32 = number.parse().map_err(|_| {
            Error::invalid(format!("Unable to parse inference header size, value is out of range, got: {given}"))
        })?;
        if usize::try_from(size).is_ok_and(|size| size <= body_size) {
            return Ok(HeaderLength::Size(size));
        }
        Err(Error::invalid(format!("inference header size should be in range (0, {body_size}), got: {given}")))
    }

    /// Gives a reply the form that the service expects: SageMaker passes on the content type and no field of ours.
    pub fn shape_reply(self, reply: &mut Reply) {
        let (Self::SageMaker, Some(binary)) = (self, self.binary_type()) else { return };
        let is_length = |name: &str| name.eq_ignore_ascii_case(Self::Kserve.length_field());
        let Some(place) = reply.fields.iter().position(|(name, _)| is_length(name)) else { return };
        let (_, size) = reply.fields.remove(place);
        if let Some((_, value)) = reply.fields.iter_mut().find(|(name, _)| *name == "Content-Type") {
            *value = Bytes::from([binary.as_bytes(), &size].concat());
        }
    }

    /// The content type of a body with binary tensors; the size of its JSON part follows.
    const fn binary_type(self) -> Option<&'static str> {
        match self {
            Self::Kserve => None,
            Self::SageMaker => Some("application/vnd.sagemaker-triton.binary+json;json-header-size="),
            Self::VertexAi => Some("application/vnd.vertex-ai-triton.binary+json;json-header-size="),
        }
    }
}

/// The number at the beginning of a text, as C's `stoi` reads it: spaces before it and anything
/// after it are ignored.
fn leading_number(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let (text, digits) = match text.strip_prefix('+') {
        Some(digits) => (digits, digits),
        None => (text, text.strip_prefix('-').unwrap_or(text)),
    };
    let count = digits.bytes().take_while(u8::is_ascii_digit).count();
    let size = text.len().saturating_sub(digits.len()).saturating_add(count);
    text.get(..size).filter(|_| count > 0)
}

impl FrontEnds {
    /// Returns the endpoint that a path names on a port of this front end; `redirect` is the result
    /// of [`FrontEnd::redirect`].
    ///
    /// # Errors
    /// `NotFound` for an unknown path, `InvalidArgument` for one that a hosting service's front end
    /// does not have.
    pub fn find<'a>(
        &'a self,
        front_end: FrontEnd,
        path: &'a [u8],
        redirect: Option<&'a [u8]>,
    ) -> Result<PathEndpoint<'a>, Error> {
        let text = |path| std::str::from_utf8(path).ok();
        let found = match front_end {
            FrontEnd::Kserve => return find(path),
            FrontEnd::SageMaker => self.sagemaker.as_ref().zip(text(path)).and_then(|(paths, path)| paths.find(path)),
            FrontEnd::VertexAi => {
                let found = self.vertex_ai.as_ref().zip(text(path));
                found.and_then(|(paths, path)| paths.find(path, redirect.map(text)))
            }
        };
        // tritonserver's status.
        found.ok_or_else(|| Error::invalid("Bad Request: this port has no such path, or the redirect leads nowhere"))
    }
}

/// An endpoint that is open.
const fn open(methods: AllowedMethods, target: PathTarget<'_>) -> PathEndpoint<'_> {
    PathEndpoint { methods, target, is_closed: false }
}

impl SageMakerPaths {
    fn find<'a>(&'a self, path: &'a str) -> Option<PathEndpoint<'a>> {
        let ping = if self.pings_live { Route::ServerLive } else { Route::ServerReady };
        let action = match self.invocation {
            Invocation::Infer => RouteAction::Infer,
            Invocation::Generate(delivery) => RouteAction::Generate(delivery),
        };
        match path.strip_prefix("/models") {
            Some("" | "/") => return Some(open(AllowedMethods::GetOrPost, PathTarget::HostedModels)),
            Some(rest) => return Self::find_model(rest.strip_prefix('/')?),
            None => {}
        }
        match path {
            "/ping" => Some(open(AllowedMethods::Get, PathTarget::Server(ping))),
            "/invocations" => Some(open(AllowedMethods::Post, PathTarget::Model(&self.model, None, action))),
            _ => None,
        }
    }

    /// The endpoint of the path after `/models/`.
    fn find_model(rest: &str) -> Option<PathEndpoint<'_>> {
        match rest.split_once('/') {
            None => Some(open(AllowedMethods::GetOrDelete, PathTarget::HostedModel(rest))),
            Some((name, "invoke")) if !name.is_empty() => {
                let invoke = Route::Hosted(HostedAction::Invoke(name));
                Some(open(AllowedMethods::Post, PathTarget::Server(invoke)))
            }
            Some(_) => None,
        }
    }
}

impl VertexAiPaths {
    /// `redirect` is `None` without the header field, and `Some(None)` if the field is not text.
    fn find<'a>(&'a self, path: &str, redirect: Option<Option<&'a str>>) -> Option<PathEndpoint<'a>> {
        if self.health.matches(path) {
            return Some(open(AllowedMethods::Get, PathTarget::Server(Route::ServerReady)));
        }
        if !self.predict.matches(path) {
            return None;
        }
        let Some(redirect) = redirect else {
            return Some(open(AllowedMethods::Post, PathTarget::Model(&self.model, None, RouteAction::Infer)));
        };
        // Every request of Vertex AI is a POST, whatever the method of the endpoint to which it is
        // redirected.
        let methods = AllowedMethods::Post;
        match redirect? {
            "/metrics" if self.shows_metrics => Some(open(methods, PathTarget::Server(Route::Metrics))),
            path => {
                let (_, target) = find_endpoint(path)?;
                Reach::of(&target).map(|reach| PathEndpoint { methods, target, is_closed: reach == Reach::Closed })
            }
        }
    }
}

/// The access that a redirect has to an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Open,
    /// It would change something in the server.
    Closed,
}

impl Reach {
    /// As in tritonserver: an endpoint that it does not list is not reachable. A new endpoint must
    /// be added here.
    const fn of(target: &PathTarget<'_>) -> Option<Self> {
        match target {
            PathTarget::Server(
                Route::ServerMetadata
                | Route::ServerLive
                | Route::ServerReady
                | Route::Statistics
                | Route::Repository(RepositoryAction::Index)
                | Route::SharedMemory(_, RegionAction::Status, _),
            )
            | PathTarget::Model(
                _,
                _,
                RouteAction::Config
                | RouteAction::Infer
                | RouteAction::Metadata
                | RouteAction::Ready
                | RouteAction::Statistics,
            ) => Some(Self::Open),
            PathTarget::Server(
                Route::Repository(RepositoryAction::Load(_) | RepositoryAction::Unload(_))
                | Route::SharedMemory(_, RegionAction::Register | RegionAction::Unregister, _),
            )
            | PathTarget::NamedRepository => Some(Self::Closed),
            PathTarget::Server(
                Route::Docs
                | Route::Links
                | Route::OpenApi
                | Route::ModelOpenApi(_)
                | Route::Logging
                | Route::TraceSetting(_)
                | Route::Metrics
                | Route::Text(..)
                | Route::TextHealth
                | Route::TextInfo(_)
                | Route::TextModels
                | Route::Models
                | Route::V1Status(_)
                | Route::V1Metadata(_)
                | Route::ModelPredict(_)
                | Route::Hosted(_)
                | Route::ModelMetadata(_)
                | Route::ModelReady(_)
                | Route::ModelConfig(_)
                | Route::ModelInfer(_)
                | Route::ModelGenerate(..)
                | Route::ModelStatistics(_),
            )
            | PathTarget::Model(
                _,
                _,
                RouteAction::Generate(_)
                | RouteAction::OpenApi
                | RouteAction::Predict
                | RouteAction::Trace
                | RouteAction::V1Metadata
                | RouteAction::V1Status,
            )
            | PathTarget::V1Label(..)
            | PathTarget::V1Verb(_)
            | PathTarget::HostedModels
            | PathTarget::HostedModel(_)
            | PathTarget::Root => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::message::Method;

    fn front_ends(pings_live: bool, invocation: Invocation, shows_metrics: bool) -> FrontEnds {
        let pattern = |text| PathPattern::new(text).unwrap();
        FrontEnds {
            sagemaker: Some(SageMakerPaths {
                pings_live,
                model: "m".to_owned(),
                invocation,
                models_root: "/models".to_owned(),
            }),
            vertex_ai: Some(VertexAiPaths {
                predict: pattern("/v1/predict"),
                health: pattern("/v1/(?:health|ready)"),
                model: "m".to_owned(),
                shows_metrics,
            }),
        }
    }

    fn outcome(all: &FrontEnds, front_end: FrontEnd, method: &str, path: &str, redirect: Option<&str>) -> String {
        let mut fields = Fields::new();
        if let Some(redirect) = redirect {
            fields.push("x-vertex-ai-triton-redirect", redirect);
        }
        let redirect = front_end.redirect(&fields);
        let found = all.find(front_end, path.as_bytes(), redirect.as_deref()).and_then(|endpoint| {
            let (category, allow) = (endpoint.category().name(), endpoint.allow());
            let route = endpoint.route(Method::from_token(method.as_bytes()));
            route.map(|route| format!("{category} {route:?}")).or_else(|error| match error.code().on_wire().0 {
                405 => Ok(format!("{category} 405 {allow}")),
                status => Ok(format!("{category} {status}")),
            })
        });
        found.unwrap_or_else(|error| error.code().on_wire().0.to_string()).replace("ModelPath ", "")
    }

    #[test]
    fn paths_of_sagemaker_lead_to_routes() {
        let all = front_ends(false, Invocation::Infer, true);
        let check = |method: &str, path: &str, want: &str| {
            assert_eq!(outcome(&all, FrontEnd::SageMaker, method, path, None), want, "{method} {path}");
        };
        check("GET", "/ping", "health ServerReady");
        check("POST", "/ping", "health 405 GET, HEAD");
        check("POST", "/invocations", "inference ModelInfer({ name: \"m\", version: None })");
        check("GET", "/invocations", "inference 405 POST");
        check("GET", "/models", "model-repository Hosted(List)");
        check("GET", "/models/", "model-repository Hosted(List)");
        check("POST", "/models", "model-repository Hosted(Load)");
        check("DELETE", "/models", "model-repository 405 GET, HEAD, POST");
        check("GET", "/models/a", "model-repository Hosted(Describe(\"a\"))");
        check("DELETE", "/models/a", "model-repository Hosted(Unload(\"a\"))");
        check("POST", "/models/a", "model-repository 405 GET, HEAD, DELETE");
        check("POST", "/models/a/invoke", "inference Hosted(Invoke(\"a\"))");
        check("GET", "/models/a/invoke", "inference 405 POST");
        for path in
            ["/", "", "/v2", "/v2/models/m/infer", "/modelsx", "/models//invoke", "/models/a/b", "/models/a/invoke/"]
        {
            check("POST", path, "400");
        }
        let others = [Invocation::Generate(Delivery::Single), Invocation::Generate(Delivery::Stream)];
        for (invocation, want) in others.into_iter().zip(["Single", "Stream"]) {
            let all = front_ends(true, invocation, true);
            let got = outcome(&all, FrontEnd::SageMaker, "POST", "/invocations", None);
            assert_eq!(got, format!("inference ModelGenerate({{ name: \"m\", version: None }}, {want})"));
            assert_eq!(outcome(&all, FrontEnd::SageMaker, "HEAD", "/ping", None), "health ServerLive");
        }
    }

    #[test]
    fn paths_and_redirects_of_vertex_ai_lead_to_routes() {
        let all = front_ends(false, Invocation::Infer, true);
        let check = |method: &str, path: &str, redirect: Option<&str>, want: &str| {
            assert_eq!(outcome(&all, FrontEnd::VertexAi, method, path, redirect), want, "{method} {path} {redirect:?}");
        };
        check("GET", "/v1/health", None, "health ServerReady");
        check("GET", "/v1/ready", Some("v2"), "health ServerReady");
        check("POST", "/v1/health", None, "health 405 GET, HEAD");
        check("POST", "/v1/predict", None, "inference ModelInfer({ name: \"m\", version: None })");
        check("GET", "/v1/predict", None, "inference 405 POST");
        for path in ["/", "/v2", "/v1/predict/", "/v2/models/m/infer", "/v1/PREDICT"] {
            check("POST", path, None, "400");
            check("POST", path, Some("v2"), "400");
        }
        for (redirect, want) in [
            ("v2", "metadata ServerMetadata"),
            ("v2/health/live", "health ServerLive"),
            ("v2/health/ready", "health ServerReady"),
            ("metrics", "statistics Metrics"),
            ("v2/models/stats", "statistics Statistics"),
            ("v2/models/a", "metadata ModelMetadata({ name: \"a\", version: None })"),
            ("v2/models/a/versions/2/ready", "health ModelReady({ name: \"a\", version: Some(2) })"),
            ("v2/models/a/config", "model-config ModelConfig({ name: \"a\", version: None })"),
            ("v2/models/a/infer", "inference ModelInfer({ name: \"a\", version: None })"),
            ("v2/models/a/stats", "statistics ModelStatistics({ name: \"a\", version: None })"),
            ("v2/repository/index", "model-repository Repository(Index)"),
            ("v2/repository/models/a/load", "model-repository 403"),
            ("v2/repository/models/a/unload", "model-repository 403"),
            ("v2/repository/r/models/a/unload", "model-repository 403"),
            ("v2/systemsharedmemory/status", "shared-memory SharedMemory(System, Status, \"\")"),
            ("v2/systemsharedmemory/region/r/register", "shared-memory 403"),
            ("v2/cudasharedmemory/unregister", "shared-memory 403"),
            ("/v2", "400"),
            ("", "400"),
            ("v2/", "400"),
            ("v2/logging", "400"),
            ("v2/trace/setting", "400"),
            ("v2/models/a/trace/setting", "400"),
            ("v2/models/a/generate", "400"),
            ("v1/models/a:predict", "400"),
            ("v2/models", "400"),
            ("v1/models/a:explain", "400"),
            ("v1/models/a/labels/l", "400"),
            ("v2/docs/openapi.json", "400"),
            ("models", "400"),
        ] {
            check("POST", "/v1/predict", Some(redirect), want);
            let refused = want.split(' ').next().filter(|word| *word != "400");
            let refused = refused.map_or("400".to_owned(), |category| format!("{category} 405 POST"));
            for method in ["GET", "HEAD", "DELETE", "PUT"] {
                check(method, "/v1/predict", Some(redirect), &refused);
            }
        }
        let all = front_ends(false, Invocation::Infer, false);
        assert_eq!(outcome(&all, FrontEnd::VertexAi, "POST", "/v1/predict", Some("metrics")), "400");
        assert_eq!(outcome(&all, FrontEnd::SageMaker, "POST", "/v1/predict", Some("v2")), "400");
        assert_eq!(outcome(&FrontEnds::default(), FrontEnd::VertexAi, "POST", "/v1/predict", None), "400");
        assert_eq!(outcome(&all, FrontEnd::Kserve, "GET", "/v2", Some("v2/logging")), "metadata ServerMetadata");
    }

    #[test]
    fn the_content_type_says_where_json_ends() {
        let check = |front_end: FrontEnd, value: &str, want: Result<HeaderLength, &str>| {
            let got = front_end.header_length(Some(value.as_bytes()), 100);
            assert_eq!(got.as_ref().map_err(|error| error.text()), want.as_ref().map_err(|want| *want), "{value}");
        };
        for (front_end, service) in [(FrontEnd::SageMaker, "sagemaker"), (FrontEnd::VertexAi, "vertex-ai")] {
            let binary = format!("application/vnd.{service}-triton.binary+json;json-header-size=");
            for (number, size) in [("0", 0), ("12", 12), ("100", 100), (" +7;charset=x", 7), ("-0", 0)] {
                check(front_end, &format!("{binary}{number}"), Ok(HeaderLength::Size(size)));
            }
            let upper = format!("APPLICATION{}3", &binary[11..]);
            check(front_end, &upper, Ok(HeaderLength::Size(3)));
            for number in ["-123", "101", "12345"] {
                let want = format!("inference header size should be in range (0, 100), got: {number}");
                check(front_end, &format!("{binary}{number}"), Err(&want));
            }
            for number in ["", "x1", "-", "+-1"] {
                let want = format!("Unable to parse inference header size, got: {number}");
                check(front_end, &format!("{binary}{number}"), Err(&want));
            }
            let want = "Unable to parse inference header size, value is out of range, got: 99999999999";
            check(front_end, &format!("{binary}99999999999"), Err(want));
            let want = format!("expect MIME type for binary data starts with '{binary}', got: x/{binary}1");
            check(front_end, &format!("x/{binary}1"), Err(&want));
            check(front_end, "application/json", Ok(HeaderLength::Absent));
            assert_eq!(front_end.header_length(None, 100), Ok(HeaderLength::Absent));
            let other = binary.replace(service, "other");
            check(front_end, &format!("{other}12"), Ok(HeaderLength::Absent));
        }
        check(FrontEnd::Kserve, "12", Ok(HeaderLength::Size(12)));
        assert_eq!(FrontEnd::Kserve.header_length(None, 100), Ok(HeaderLength::Absent));
    }

    #[test]
    fn only_sagemaker_gets_the_size_in_the_content_type() {
        let reply = || {
            let mut reply = Reply::new(200, "application/octet-stream", Bytes::from_static(b"{}1234"));
            reply.fields.push(("Inference-Header-Content-Length", Bytes::from_static(b"2")));
            reply
        };
        for front_end in [FrontEnd::Kserve, FrontEnd::VertexAi] {
            let mut shaped = reply();
            front_end.shape_reply(&mut shaped);
            assert_eq!(shaped.fields, reply().fields, "{front_end:?}");
        }
        let mut shaped = reply();
        FrontEnd::SageMaker.shape_reply(&mut shaped);
        let want = "application/vnd.sagemaker-triton.binary+json;json-header-size=2";
        assert_eq!(shaped.fields.as_slice(), [("Content-Type", Bytes::from_static(want.as_bytes()))]);
        let mut json = Reply::new(200, "application/json", Bytes::from_static(b"{}"));
        FrontEnd::SageMaker.shape_reply(&mut json);
        assert_eq!(json.fields.as_slice(), [("Content-Type", Bytes::from_static(b"application/json"))]);
    }
}
