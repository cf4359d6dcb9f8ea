//! The OpenAPI 3.0 document of the HTTP API, written from a table of the endpoints. A test compares
//! the table with the routes, both ways.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use self::EndpointContent::{Events, Json, Nothing, Tensors};
use crate::rest::encode::JSON;
use wire::message::Reply;

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

/// The content of a request's or reply's body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndpointContent {
    /// Server-sent events.
    Events,
    /// A JSON object or list.
    Json,
    /// Nothing.
    Nothing,
    /// A JSON object, perhaps followed by binary tensors.
    Tensors,
}

impl RestEndpoint {
    const fn get(path: &'static str, name: &'static str, summary: &'static str) -> Self {
        let (takes, gives) = (Nothing, Json);
        Self { method: "get", path, name, summary, takes, gives }
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
    fn operation(&self, path: &str, name: &str) -> String {
        let Self { method, summary, takes, gives, .. } = self;
        let mut text = format!(r#""{method}":{{"operationId":"{name}","summary":"{summary}""#);
        let names = path.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
        let parameter = |(name, _): (&str, &str)| {
            let kind = if name == "version" { "integer" } else { "string" };
            format!(r#"{{"name":"{name}","in":"path","required":true,"schema":{{"type":"{kind}"}}}}"#)
        };
        let parameters: Vec<_> = names.map(parameter).collect();
        let _ = write!(text, r#","parameters":[{}]"#, parameters.join(","));
        if *takes != Nothing {
            let _ = write!(text, r#","requestBody":{{{}}}"#, content(*takes));
        }
        let comma = if *gives == Nothing { "" } else { "," };
        let given = content(*gives);
        let _ = write!(text, r#","responses":{{"200":{{"description":"Success"{comma}{given}}},"#);
        text.push_str(r##""default":{"$ref":"#/components/responses/Error"}}}"##);
        text
    }
}

/// The endpoints.
const ENDPOINTS: &[RestEndpoint] = &[
    RestEndpoint::get("/v2", "serverMetadata", "Name, version and extensions of the server"),
    RestEndpoint::get("/v2/health/live", "serverLive", "Whether the server is up"),
    RestEndpoint::get("/v2/health/ready", "serverReady", "Whether the server can serve all of its models"),
    RestEndpoint::get("/v2/docs/openapi.json", "openapi", "This document"),
    RestEndpoint::get("/v2/logging", "logSettings", "What is logged"),
    RestEndpoint::post("/v2/logging", "changeLogSettings", "Changes what is logged", Json, Json),
    RestEndpoint::get("/v2[/models/{model}]/trace/setting", "traceSetting", "What is traced, of all models or of one"),
    RestEndpoint::post(
        "/v2[/models/{model}]/trace/setting",
        "changeTraceSetting",
        "Changes what is traced",
        Json,
        Json,
    ),
    RestEndpoint::get("/v2/models/stats", "statistics", "Statistics of all models"),
    RestEndpoint::get("/v2/models/{model}[/versions/{version}]", "modelMetadata", "Inputs and outputs of a model"),
    RestEndpoint::get("/v2/models/{model}[/versions/{version}]/ready", "modelReady", "Whether a model can serve"),
    RestEndpoint::get("/v2/models/{model}[/versions/{version}]/config", "modelConfig", "The configuration of a model"),
    RestEndpoint::get("/v2/models/{model}[/versions/{version}]/stats", "modelStatistics", "Statistics of a model"),
    RestEndpoint::post("/v2/models/{model}[/versions/{version}]/infer", "infer", "Runs a model", Tensors, Tensors),
    RestEndpoint::post(
        "/v2/models/{model}[/versions/{version}]/generate",
        "generate",
        "Runs a model on plain JSON; inputs and outputs are members",
        Json,
        Json,
    ),
    RestEndpoint::post(
        "/v2/models/{model}[/versions/{version}]/generate_stream",
        "generateStream",
        "The same with any number of responses, each an event",
        Json,
        Events,
    ),
    RestEndpoint::post("/v2/repository[/{repository}]/index", "repositoryIndex", "Lists the models", Json, Json),
    RestEndpoint::post("/v2/repository/models/{model}/load", "load", "Loads a model, or loads it again", Json, Nothing),
    RestEndpoint::post("/v2/repository/models/{model}/unload", "unload", "Unloads a model", Json, Nothing),
    RestEndpoint::get(
        "/v2/systemsharedmemory[/region/{region}]/status",
        "systemMemoryStatus",
        "Registered regions of system shared memory",
    ),
    RestEndpoint::post(
        "/v2/systemsharedmemory/region/{region}/register",
        "systemMemoryRegister",
        "Registers a region of system shared memory",
        Json,
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
    ),
    RestEndpoint::post(
        "/v2/cudasharedmemory/region/{region}/register",
        "cudaMemoryRegister",
        "Registers a region of GPU memory",
        Json,
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

/// The document as a reply.
pub fn reply(version: &str) -> Reply {
    Reply::new(200, JSON, document(version))
}

fn document(version: &str) -> String {
    let mut paths: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for endpoint in ENDPOINTS {
        for (path, name) in endpoint.paths() {
            let operation = endpoint.operation(&path, &name);
            paths.entry(path).or_default().push(operation);
        }
    }
    let paths: Vec<_> =
        paths.into_iter().map(|(path, operations)| format!(r#""{path}":{{{}}}"#, operations.join(","))).collect();
    let info = format!(r#"{{"openapi":"3.0.3","info":{{"title":"Deuteron","version":"{version}"}}"#);
    format!(r#"{info},"paths":{{{}{COMPONENTS}"#, paths.join(","))
}

const fn content(content: EndpointContent) -> &'static str {
    match content {
        Events => r#""content":{"text/event-stream":{"schema":{"type":"string"}}}"#,
        Json => r#""content":{"application/json":{"schema":{}}}"#,
        Nothing => "",
        Tensors => {
            r#""content":{"application/json":{"schema":{"type":"object"}},"application/octet-stream":{"schema":{"type":"string","format":"binary"}}}"#
        }
    }
}

/// The text after the paths: the reply of every endpoint that refuses.
const COMPONENTS: &str = concat!(
    r#"},"components":{"responses":{"Error":{"description":"A refusal or failure; its text says why","content":"#,
    r#"{"application/json":{"schema":{"type":"object","required":["error"],"properties":{"error":{"type":"string"}}}}}}}}}"#
);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::route::{Delivery, RegionAction, RepositoryAction, Route, route};
    use crate::shared_memory::RegionKind;
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
            Route::Metrics | Route::Hosted(_) => panic!("on ports of hosting services, which have their own contract"),
        }
    }
    const ROUTE_COUNT: usize = 23;

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
        let document: serde_json::Value = serde_json::from_str(&document("1.2.3")).unwrap();
        assert_eq!(document["info"]["version"], "1.2.3");
        let infer = &document["paths"]["/v2/models/{model}/versions/{version}/infer"]["post"];
        let names: Vec<_> = infer["parameters"].as_array().unwrap().iter().map(|one| one["name"].as_str()).collect();
        assert_eq!(names, [Some("model"), Some("version")]);
        let paths = document["paths"].as_object().unwrap();
        let operations = paths.values().flat_map(|path| path.as_object().unwrap().values());
        let names: BTreeSet<_> = operations.map(|one| one["operationId"].as_str().unwrap()).collect();
        let count = paths.values().map(|path| path.as_object().unwrap().len()).sum::<usize>();
        assert_eq!(names.len(), count, "each operation has a name of its own");
        assert_eq!(paths["/v2/logging"].as_object().unwrap().len(), 2, "methods of one path are together");
    }
}
