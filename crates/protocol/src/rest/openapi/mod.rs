//! The OpenAPI 3.0 documents: of the HTTP API, written from a table of the endpoints, and of one model, with its tensors
//! as schemas. A test compares the table with the routes, both ways. The schemas of messages are in `components.json`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::Bytes;

use self::EndpointContent::{Events, Html, Json, Nothing, OptionalJson, Probe, Tensors};
use crate::rest::encode::JSON;
use crate::route::find;
use wire::message::{Method, Reply};

mod model;

pub use model::model_reply;

/// One endpoint.
struct RestEndpoint {
    method: &'static str,
    /// The path; the part in brackets is optional.
    path: &'static str,
    /// The operation's name, which is unique.
    name: &'static str,
    summary: &'static str,
    takes: EndpointContent,
    gives: EndpointContent,
}

/// The content of a request's or reply's body, with the name of its schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndpointContent {
    /// Server-sent events.
    Events,
    /// A page.
    Html,
    /// JSON.
    Json(&'static str),
    /// Nothing.
    Nothing,
    /// JSON, or nothing.
    OptionalJson(&'static str),
    /// JSON, with 503 instead of 200 if it is not ready.
    Probe(&'static str),
    /// A JSON object, perhaps followed by binary tensors.
    Tensors(&'static str),
}

impl RestEndpoint {
    const fn get(path: &'static str, name: &'static str, summary: &'static str, gives: EndpointContent) -> Self {
        Self { method: "get", path, name, summary, takes: Nothing, gives }
    }

    const fn post(
        path: &'static str,
        name: &'static str,
        summary: &'static str,
        takes: EndpointContent,
        gives: EndpointContent,
    ) -> Self {
        Self { method: "post", path, name, summary, takes, gives }
    }

    /// Its paths, without and with the optional part, and its name on each.
    fn paths(&self) -> impl Iterator<Item = (String, String)> {
        let parts = self.path.split_once('[').and_then(|(before, rest)| Some((before, rest.split_once(']')?)));
        let (short, long) = match parts {
            Some((before, (option, after))) => {
                (format!("{before}{after}"), Some((format!("{before}{option}{after}"), format!("{}Of", self.name))))
            }
            None => (self.path.to_owned(), None),
        };
        std::iter::once((short, self.name.to_owned())).chain(long)
    }

    /// The document's description of it under one of its paths.
    fn operation(&self, path: &str, name: &str, has_keys: bool) -> String {
        let Self { method, summary, takes, gives, .. } = self;
        let mut text = format!(r#""{method}":{{"operationId":"{name}","summary":"{summary}""#);
        self.write_access(has_keys, &mut text);
        let names = path.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
        let parameter = |(name, _): (&str, &str)| {
            let kind = if name == "version" { "integer" } else { "string" };
            format!(r#"{{"name":"{name}","in":"path","required":true,"schema":{{"type":"{kind}"}}}}"#)
        };
        let mut parameters: Vec<_> = names.map(parameter).collect();
        if matches!(takes, Tensors(_)) {
            parameters.push(r##"{"$ref":"#/components/parameters/HeaderLength"}"##.to_owned());
        }
        let _ = write!(text, r#","parameters":[{}]"#, parameters.join(","));
        if *takes != Nothing {
            let is_required = !matches!(takes, OptionalJson(_));
            let _ = write!(text, r#","requestBody":{{"required":{is_required},{}}}"#, content(*takes));
        }
        let comma = if *gives == Nothing { "" } else { "," };
        let mut given = content(*gives);
        if matches!(gives, Tensors(_)) {
            let header =
                r##""headers":{"Inference-Header-Content-Length":{"$ref":"#/components/headers/HeaderLength"}}"##;
            given = format!("{header},{given}");
        }
        let _ = write!(text, r#","responses":{{"200":{{"description":"Success"{comma}{given}}},"#);
        if matches!(gives, Probe(_)) {
            let _ = write!(text, r#""503":{{"description":"Not ready"{comma}{given}}},"#);
        }
        text.push_str(r##""default":{"$ref":"#/components/responses/Error"}}}"##);
        text
    }

    /// Writes the category of `docs/security.md` as the tag, and the keys if the endpoint asks for one.
    fn write_access(&self, has_keys: bool, text: &mut String) {
        let path = self.path.replace("{version}", "1").replace(['[', ']', '{', '}'], "");
        let Ok(endpoint) = find(path.as_bytes()) else { return };
        let _ = write!(text, r#","tags":["{}"]"#, endpoint.category().name());
        let method = if self.method == "get" { Method::Get } else { Method::Post };
        if let Some(class) = endpoint.part(method).class.filter(|_| has_keys) {
            let _ = write!(text, r#","description":"A key of class {} is needed","security":{KEYS}"#, class.name());
        }
    }
}

/// The schemes of keys, each of which is enough.
const KEYS: &str = r#"[{"bearer":[]},{"apiKey":[]}]"#;

/// The endpoints.
const ENDPOINTS: &[RestEndpoint] = &[
    RestEndpoint::get("/", "links", "Where to go from here; a page if the client prefers HTML", Json("Links")),
    RestEndpoint::get("/v2", "serverMetadata", "Name, version and extensions of the server", Json("ServerMetadata")),
    RestEndpoint::get("/v2/health/live", "serverLive", "Whether the server is up", Json("ServerLive")),
    RestEndpoint::get(
        "/v2/health/ready",
        "serverReady",
        "Whether the server can serve all of its models",
        Probe("ServerReady"),
    ),
    RestEndpoint::get("/v2/docs", "docs", "A page to read and try the operations", Html),
    RestEndpoint::get("/v2/docs/openapi.json", "openapi", "This document", Json("Object")),
    RestEndpoint::get(
        "/v2/models/{model}[/versions/{version}]/docs/openapi.json",
        "modelOpenapi",
        "The operations of one model, with its tensors as schemas",
        Json("Object"),
    ),
    RestEndpoint::get("/v2/logging", "logSettings", "What is logged", Json("LogSettings")),
    RestEndpoint::post(
        "/v2/logging",
        "changeLogSettings",
        "Changes what is logged",
        Json("LogSettingsChange"),
        Json("LogSettings"),
    ),
    RestEndpoint::get(
        "/v2[/models/{model}]/trace/setting",
        "traceSetting",
        "What is traced, of all models or of one",
        Json("TraceSetting"),
    ),
    RestEndpoint::post(
        "/v2[/models/{model}]/trace/setting",
        "changeTraceSetting",
        "Changes what is traced",
        Json("TraceSettingChange"),
        Json("TraceSetting"),
    ),
    RestEndpoint::get("/v2/models", "models", "The models that serve", Json("Models")),
    RestEndpoint::get("/v2/models/stats", "statistics", "Statistics of all models", Json("Statistics")),
    RestEndpoint::get(
        "/v2/models/{model}[/versions/{version}]",
        "modelMetadata",
        "Inputs and outputs of a model",
        Json("ModelMetadata"),
    ),
    RestEndpoint::get(
        "/v2/models/{model}[/versions/{version}]/ready",
        "modelReady",
        "Whether a model can serve",
        Probe("ModelReady"),
    ),
    RestEndpoint::get(
        "/v2/models/{model}[/versions/{version}]/config",
        "modelConfig",
        "The configuration of a model",
        Json("ModelConfig"),
    ),
    RestEndpoint::get(
        "/v2/models/{model}[/versions/{version}]/stats",
        "modelStatistics",
        "Statistics of a model",
        Json("Statistics"),
    ),
    RestEndpoint::post(
        "/v2/models/{model}[/versions/{version}]/infer",
        "infer",
        "Runs a model",
        Tensors("InferRequest"),
        Tensors("InferResponse"),
    ),
    RestEndpoint::post(
        "/v2/models/{model}[/versions/{version}]/generate",
        "generate",
        "Runs a model on plain JSON; inputs and outputs are members",
        Json("GenerateRequest"),
        Json("GenerateResponse"),
    ),
    RestEndpoint::post(
        "/v2/models/{model}[/versions/{version}]/generate_stream",
        "generateStream",
        "The same with any number of responses, each an event",
        Json("GenerateRequest"),
        Events,
    ),
    RestEndpoint::post(
        "[/models/{model}]/embed",
        "embed",
        "Texts to vectors, in the form of text-embeddings-inference",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/embed_sparse",
        "embedSparse",
        "Texts to sparse vectors",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/embeddings",
        "embeddings",
        "Texts to vectors, in the form of OpenAI",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/predict",
        "predict",
        "Texts, or pairs of them, to the scores of classes",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/rerank",
        "rerank",
        "Texts by their relevance for a query",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/similarity",
        "similarity",
        "How similar texts are to another",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/v1/embeddings",
        "embeddingsV1",
        "Texts to vectors, in the form of OpenAI",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/v1/rerank",
        "rerankV1",
        "Documents by their relevance for a query, in the form of Cohere and Jina",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/v2/rerank",
        "rerankV2",
        "Documents by their relevance for a query, in the form of Cohere and Jina",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "/",
        "ownTask",
        "Texts for the only model of texts, as its task is",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "/models/{model}",
        "modelOwnTask",
        "Texts for a model, as its task is",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/embed_all",
        "embedAll",
        "Texts to a vector for each token",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/tokenize",
        "tokenize",
        "Texts to their tokens",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post("[/models/{model}]/decode", "decode", "Token ids to texts", Json("Object"), Json("Object")),
    RestEndpoint::post(
        "[/models/{model}]/classify",
        "classify",
        "Texts to the probabilities of classes, in the form of vLLM",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/v1/classify",
        "classifyV1",
        "Texts to the probabilities of classes, in the form of vLLM",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::post(
        "[/models/{model}]/vertex",
        "vertex",
        "Bodies of the task of a model, in the form of Vertex AI",
        Json("Object"),
        Json("Object"),
    ),
    RestEndpoint::get("[/models/{model}]/info", "textInfo", "A model of texts and its bounds", Json("Object")),
    RestEndpoint::get("/health", "textHealth", "Whether the server can serve all of its models", Nothing),
    RestEndpoint::get("/v1/models", "textModels", "The models, in the forms of OpenAI and KServe V1", Json("Object")),
    RestEndpoint::get(
        "/v1/models/{model}[/versions/{version}]",
        "statusV1",
        "Whether a model can serve, in the forms of KServe V1, TensorFlow Serving and OpenAI",
        Probe("StatusV1"),
    ),
    RestEndpoint::get(
        "/v1/models/{model}[/versions/{version}]/metadata",
        "metadataV1",
        "Inputs and outputs of a model, in the form of TensorFlow Serving",
        Json("Object"),
    ),
    RestEndpoint::post(
        "/v1/models/{model}[/versions/{version}]:predict",
        "predictV1",
        "Runs a model on rows or columns, in the form of KServe V1 and TensorFlow Serving",
        Json("PredictRequest"),
        Json("PredictResponse"),
    ),
    RestEndpoint::get("/v2/repository[/{repository}]/index", "readRepositoryIndex", "Lists the models", Json("Index")),
    RestEndpoint::post(
        "/v2/repository[/{repository}]/index",
        "repositoryIndex",
        "Lists the models",
        OptionalJson("IndexRequest"),
        Json("Index"),
    ),
    RestEndpoint::post(
        "/v2/repository/models/{model}/load",
        "load",
        "Loads a model, or loads it again",
        OptionalJson("LoadRequest"),
        Nothing,
    ),
    RestEndpoint::post(
        "/v2/repository/models/{model}/unload",
        "unload",
        "Unloads a model",
        OptionalJson("UnloadRequest"),
        Nothing,
    ),
    RestEndpoint::get(
        "/v2/systemsharedmemory[/region/{region}]/status",
        "systemMemoryStatus",
        "Registered regions of system shared memory",
        Json("SystemRegions"),
    ),
    RestEndpoint::post(
        "/v2/systemsharedmemory/region/{region}/register",
        "systemMemoryRegister",
        "Registers a region of system shared memory",
        Json("SystemRegionRequest"),
        Nothing,
    ),
    RestEndpoint::post(
        "/v2/systemsharedmemory[/region/{region}]/unregister",
        "systemMemoryUnregister",
        "Unregisters one region of system shared memory, or all",
        Nothing,
        Nothing,
    ),
    RestEndpoint::get(
        "/v2/cudasharedmemory[/region/{region}]/status",
        "cudaMemoryStatus",
        "Registered regions of GPU memory",
        Json("CudaRegions"),
    ),
    RestEndpoint::post(
        "/v2/cudasharedmemory/region/{region}/register",
        "cudaMemoryRegister",
        "Registers a region of GPU memory",
        Json("CudaRegionRequest"),
        Nothing,
    ),
    RestEndpoint::post(
        "/v2/cudasharedmemory[/region/{region}]/unregister",
        "cudaMemoryUnregister",
        "Unregisters one region of GPU memory, or all",
        Nothing,
        Nothing,
    ),
];

/// The document as a reply. With `has_keys` clients need API keys.
pub fn reply(version: &str, has_keys: bool) -> Reply {
    Reply::new(200, JSON, document(version, has_keys))
}

/// The page that lists the operations of `openapi.json` and lets a person try them.
pub fn page_reply() -> Reply {
    let mut reply = Reply::new(200, "text/html; charset=utf-8", Bytes::from_static(PAGE));
    let fields = [("Content-Security-Policy", PAGE_POLICY), ("X-Content-Type-Options", "nosniff")];
    reply.fields.extend(fields.map(|(name, value)| (name, Bytes::from_static(value.as_bytes()))));
    reply
}

const PAGE: &[u8] = include_bytes!("docs.html");

/// The page has its style and script in itself, asks this server alone, and is in no frame.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                           connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

fn document(version: &str, has_keys: bool) -> String {
    let mut paths: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for endpoint in ENDPOINTS {
        for (path, name) in endpoint.paths() {
            let operation = endpoint.operation(&path, &name, has_keys);
            paths.entry(path).or_default().push(operation);
        }
    }
    let paths: Vec<_> =
        paths.into_iter().map(|(path, operations)| format!(r#""{path}":{{{}}}"#, operations.join(","))).collect();
    let info = format!(r#"{{"openapi":"3.0.3","info":{{"title":"Deuteron","version":"{version}"}}"#);
    format!(r#"{info},"paths":{{{}}},"components":{COMPONENTS}}}"#, paths.join(","))
}

fn content(content: EndpointContent) -> String {
    let json = |name| format!(r##""application/json":{{"schema":{{"$ref":"#/components/schemas/{name}"}}}}"##);
    let text = |kind| format!(r#""{kind}":{{"schema":{{"type":"string"}}}}"#);
    match content {
        Events => format!(r#""content":{{{}}}"#, text("text/event-stream")),
        Html => format!(r#""content":{{{}}}"#, text("text/html")),
        Json(name) | OptionalJson(name) | Probe(name) => format!(r#""content":{{{}}}"#, json(name)),
        Nothing => String::new(),
        Tensors(name) => format!(
            r#""content":{{{},"application/octet-stream":{{"schema":{{"type":"string","format":"binary"}}}}}}"#,
            json(name)
        ),
    }
}

/// The schemas and what else is shared.
const COMPONENTS: &str = include_str!("components.json");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::route::{Delivery, RegionAction, RepositoryAction, Route, route};
    use crate::shared_memory::RegionKind;
    use crate::text::TextPath;
    use wire::message::Method;

    /// Numbers all routes, from 0 on. A new route does not compile without a number.
    const fn number(route: &Route<'_>) -> usize {
        match route {
            Route::ServerMetadata => 0,
            Route::ServerLive => 1,
            Route::ServerReady => 2,
            Route::OpenApi => 3,
            Route::ModelMetadata(_) => 4,
            Route::ModelReady(_) => 5,
            Route::ModelConfig(_) => 6,
            Route::ModelInfer(_) => 7,
            Route::ModelGenerate(_, Delivery::Single) => 8,
            Route::ModelGenerate(_, Delivery::Stream) => 9,
            Route::Statistics => 10,
            Route::ModelStatistics(_) => 11,
            Route::Repository(RepositoryAction::Index) => 12,
            Route::Repository(RepositoryAction::Load(_)) => 13,
            Route::Repository(RepositoryAction::Unload(_)) => 14,
            Route::SharedMemory(RegionKind::System, RegionAction::Status, _) => 15,
            Route::SharedMemory(RegionKind::System, RegionAction::Register, _) => 16,
            Route::SharedMemory(RegionKind::System, RegionAction::Unregister, _) => 17,
            Route::SharedMemory(RegionKind::Cuda, RegionAction::Status, _) => 18,
            Route::SharedMemory(RegionKind::Cuda, RegionAction::Register, _) => 19,
            Route::SharedMemory(RegionKind::Cuda, RegionAction::Unregister, _) => 20,
            Route::Logging => 21,
            Route::TraceSetting(_) => 22,
            Route::Links => 23,
            Route::Docs => 24,
            Route::ModelOpenApi(_) => 25,
            Route::Text(path, _) => match path {
                TextPath::Embed => 26,
                TextPath::EmbedSparse => 27,
                TextPath::Embeddings => 28,
                TextPath::Predict => 29,
                TextPath::Rerank => 30,
                TextPath::RerankDocuments => 31,
                TextPath::Similarity => 32,
                TextPath::Classify => 34,
                TextPath::Decode => 35,
                TextPath::EmbedAll => 36,
                TextPath::Own => 37,
                TextPath::Tokenize => 38,
                TextPath::Vertex => 45,
            },
            Route::TextModels => 33,
            Route::TextHealth => 39,
            Route::TextInfo(_) => 40,
            Route::V1Status(_) => 41,
            Route::V1Metadata(_) => 42,
            Route::ModelPredict(_) => 43,
            Route::Models => 44,
            Route::Metrics | Route::Hosted(_) => panic!("on ports of hosting services, which have their own contract"),
        }
    }
    const ROUTE_COUNT: usize = 46;

    #[test]
    fn every_route_is_in_the_document_and_nothing_else() {
        let mut seen = BTreeSet::new();
        for endpoint in ENDPOINTS {
            let method = Method::from_token(endpoint.method.to_uppercase().as_bytes());
            for (path, name) in endpoint.paths() {
                let path = path.replace("{version}", "1").replace(['{', '}'], "");
                let found = route(method, path.as_bytes());
                seen.insert(number(&found.unwrap_or_else(|error| panic!("{name}: {path}: {error}"))));
            }
        }
        assert_eq!(seen, (0..ROUTE_COUNT).collect());
    }

    #[test]
    fn the_document_names_each_parameter_and_each_operation_once() {
        let document: serde_json::Value = serde_json::from_str(&document("1.2.3", false)).unwrap();
        assert_eq!(document["info"]["version"], "1.2.3");
        let infer = &document["paths"]["/v2/models/{model}/versions/{version}/infer"]["post"];
        let names: Vec<_> = infer["parameters"].as_array().unwrap().iter().map(|one| one["name"].as_str()).collect();
        assert_eq!(names, [Some("model"), Some("version"), None], "the last one is the header");
        let paths = document["paths"].as_object().unwrap();
        let operations = paths.values().flat_map(|path| path.as_object().unwrap().values());
        let names: BTreeSet<_> = operations.map(|one| one["operationId"].as_str().unwrap()).collect();
        let count = paths.values().map(|path| path.as_object().unwrap().len()).sum::<usize>();
        assert_eq!(names.len(), count, "each operation has a name of its own");
        assert_eq!(paths["/v2/logging"].as_object().unwrap().len(), 2, "methods of one path are together");
    }

    #[test]
    fn every_schema_is_there_and_used() {
        let text = document("1", false);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let named: BTreeSet<_> =
            text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next()).collect();
        let all: BTreeSet<_> = schemas.keys().map(|name| Some(name.as_str())).collect();
        assert_eq!(named, all);
        let infer = &document["paths"]["/v2/models/{model}/infer"]["post"];
        assert_eq!(
            infer["requestBody"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/InferRequest"
        );
        assert_eq!(
            infer["responses"]["200"]["headers"]["Inference-Header-Content-Length"]["$ref"],
            "#/components/headers/HeaderLength"
        );
    }

    #[test]
    fn keys_are_in_the_document_where_they_are_needed() {
        let read = |has_keys| serde_json::from_str::<serde_json::Value>(&document("1", has_keys)).unwrap();
        let (open, closed) = (read(false), read(true));
        let infer = |document: &serde_json::Value| document["paths"]["/v2/models/{model}/infer"]["post"].clone();
        assert_eq!(infer(&open)["tags"][0], "inference");
        assert!(infer(&open)["security"].is_null());
        assert_eq!(infer(&closed)["security"][1]["apiKey"].as_array().map(Vec::len), Some(0));
        assert_eq!(infer(&closed)["description"], "A key of class infer is needed");
        assert!(closed["paths"]["/v2/health/live"]["get"]["security"].is_null(), "health is open");
    }
}
