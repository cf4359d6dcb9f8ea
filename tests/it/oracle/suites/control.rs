//! Explicit control: loads and unloads by clients, the index afterwards, and refusals.

use std::{fs, path::Path};

use crate::{
    oracle::{
        case::{Case, Table},
        compare::{Becomes, Difference, On},
        suites::{Suite, model},
    },
    support::{protobuf::Message, repository::Flavour},
};

/// The suite.
pub const SUITE: Suite = Suite {
    name: "control",
    flags: &["--model-control-mode=explicit"],
    own_flags: || Some(Vec::new()),
    cases,
    differences: DIFFERENCES,
    write,
};

const TENSORS: &str = "instance_group { count: 1 kind: KIND_CPU }\n\
    input { name: \"INPUT0\" data_type: TYPE_FP32 dims: 1 }\noutput { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: 1 }";

fn write(flavour: Flavour, repository: &Path) {
    let identity = include_str!("../../../oracle/identity.py");
    for name in ["one", "two"] {
        model(flavour, repository, name, "identity", TENSORS, identity);
    }
    let named = format!("name: \"other\"\n{TENSORS}");
    model(flavour, repository, "misnamed", "identity", &named, identity);
    let specific = format!("{TENSORS}\nversion_policy {{ specific {{ versions: 9 }} }}");
    model(flavour, repository, "versionless", "identity", &specific, identity);
    fs::create_dir_all(repository.join("empty")).expect("the folder is ours");
}

fn load(table: &mut Table, model: &str, body: &str) {
    let name = if body.is_empty() { format!("load {model}") } else { format!("load {model} with {body}") };
    table.post(&name, &format!("/v2/repository/models/{model}/load"), &[], body.as_bytes());
}

fn unload(table: &mut Table, model: &str, body: &str) {
    let name = format!("unload {model} {body}");
    table.post(name.trim_end(), &format!("/v2/repository/models/{model}/unload"), &[], body.as_bytes());
}

fn ready(table: &mut Table, when: &str) {
    table.post(&format!("index of what is ready {when}"), "/v2/repository/index", &[], br#"{"ready":true}"#);
}

fn infer(table: &mut Table, when: &str) {
    let json = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1.5]}]}"#;
    table.infer(&format!("infer {when}"), "one", json);
}

fn cases() -> Vec<Case> {
    let mut table = Table::new("control");
    ready(&mut table, "at first");
    infer(&mut table, "before the load");
    load(&mut table, "one", "");
    infer(&mut table, "after the load");
    ready(&mut table, "after the load");
    load(&mut table, "one", "{}");
    load(&mut table, "two", r#"{"parameters":{}}"#);
    ready(&mut table, "after two loads");
    for model in ["nope", "misnamed", "versionless"] {
        load(&mut table, model, "");
    }
    for body in [
        "{",
        "[]",
        r#"{"parameters":{"foo":1}}"#,
        r#"{"parameters":{"config":1}}"#,
        r#"{"parameters":{"config":"{"}}"#,
        r#"{"parameters":[]}"#,
        r#"{"parameters":{"file:1/x":"AAAA"}}"#,
    ] {
        load(&mut table, "one", body);
    }
    ready(&mut table, "after loads that failed");
    for body in ["[]", "{", r#"{"ready":1}"#, r#"{"ready":"yes"}"#, "null"] {
        table.post(&format!("index with {body}"), "/v2/repository/index", &[], body.as_bytes());
    }
    table.post("index of a named repository", "/v2/repository/r/index", &[], br#"{"ready":true}"#);
    table.post("load from a named repository", "/v2/repository/r/models/one/load", &[], b"");
    table.verb("GET", "/v2/repository/index");
    table.verb("GET", "/v2/repository/models/one/load");
    unload(&mut table, "two", "");
    unload(&mut table, "nope", "");
    for body in [r#"{"parameters":{"unload_dependents":1}}"#, r#"{"parameters":{"unload_dependents":false}}"#, "{"] {
        unload(&mut table, "nope", body);
    }
    ready(&mut table, "after an unload");
    let rpc = |name: &str| -> &'static str {
        match name {
            "index" => "/inference.GRPCInferenceService/RepositoryIndex",
            "load" => "/inference.GRPCInferenceService/RepositoryModelLoad",
            _ => "/inference.GRPCInferenceService/RepositoryModelUnload",
        }
    };
    let named = |name: &str| Message::new().bytes(2, name);
    let with = |key: &str, value: Message| named("two").message(3, Message::new().bytes(1, key).message(2, value));
    table.call("load two by gRPC", rpc("load"), named("two"));
    table.call("index by gRPC", rpc("index"), Message::new().int(2, 1));
    table.call("load nope by gRPC", rpc("load"), named("nope"));
    table.call("load versionless by gRPC", rpc("load"), named("versionless"));
    table.call("load with an unknown parameter by gRPC", rpc("load"), with("foo", Message::new().int(2, 1)));
    table.call("load with a config that is a number by gRPC", rpc("load"), with("config", Message::new().int(2, 1)));
    table.call(
        "load with a file that is a string by gRPC",
        rpc("load"),
        with("file:1/x", Message::new().bytes(3, "x")),
    );
    table.call("load from a named repository by gRPC", rpc("load"), named("two").bytes(1, "r"));
    table.call("unload two by gRPC", rpc("unload"), named("two"));
    table.call("unload nope by gRPC", rpc("unload"), named("nope"));
    table.call(
        "unload with dependents that are a number by gRPC",
        rpc("unload"),
        with("unload_dependents", Message::new().int(2, 1)),
    );
    table.into_cases()
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        decision: "the repository index is read by GET too, of a server that is controlled",
        on: On::Cases(&["control: GET /v2/repository/index"]),
        becomes: Becomes::Answer(
            "200 application/json\n\
             [{\"name\":\"empty\"},{\"name\":\"misnamed\",\"state\":\"UNAVAILABLE\",\"reason\":\"unexpected directory name \
             'misnamed' for model 'other', directory name must equal model name\"},{\"name\":\"one\",\"version\":\"1\",\
             \"state\":\"READY\",\"reason\":\"the load request has files but no parameter 'config', which they require\"},\
             {\"name\":\"two\",\"version\":\"1\",\"state\":\"READY\"},{\"name\":\"versionless\",\"state\":\"UNAVAILABLE\",\
             \"reason\":\"at least one version must be available under the version policy of model 'versionless'\"}]",
        ),
    },
    Difference {
        decision: "an error's body is JSON, and its type says so",
        on: On::Every(|_, answer| answer.contains(" text/plain\n{\"error\":")),
        becomes: Becomes::Replaced("text/plain", "application/json"),
    },
    Difference {
        decision: "a client's mistake in the JSON is 400, as the protocol says; Triton says 500",
        on: On::Cases(&["control: load one with {", "control: index with {"]),
        becomes: Becomes::Replaced("500 application/json", "400 application/json"),
    },
    Difference {
        decision: "a model that no repository has is not found; Triton says 500",
        on: On::Cases(&["control: load nope"]),
        becomes: Becomes::Replaced("500 application/json", "404 application/json"),
    },
    Difference {
        decision: "a model that no repository has is not found over gRPC too",
        on: On::Cases(&["control: load nope by gRPC"]),
        becomes: Becomes::Replaced("Internal: ", "NotFound: "),
    },
    Difference {
        decision: "what a client brings for a load and is invalid is 400; Triton says 500",
        on: On::Cases(&[
            "control: load one with {\"parameters\":{\"config\":\"{\"}}",
            "control: load one with {\"parameters\":{\"file:1/x\":\"AAAA\"}}",
        ]),
        becomes: Becomes::Replaced("500 application/json", "400 application/json"),
    },
    Difference {
        decision: "who asks for a load is told why it failed; Triton tells its log",
        on: On::Cases(&["control: load misnamed"]),
        becomes: Becomes::Replaced(
            "repository\"}",
            "repository: unexpected directory name 'misnamed' for model 'other', directory name must equal model name\"}",
        ),
    },
    Difference {
        decision: "who brings a configuration is told where it is wrong",
        on: On::Cases(&["control: load one with {\"parameters\":{\"config\":\"{\"}}"]),
        becomes: Becomes::Replaced(
            "repository\"}",
            "repository: config.json:1:2: Missing a name for object member.\"}",
        ),
    },
    Difference {
        decision: "files without a configuration are refused with the reason",
        on: On::Cases(&["control: load one with {\"parameters\":{\"file:1/x\":\"AAAA\"}}"]),
        becomes: Becomes::Replaced(
            "repository\"}",
            "repository: the load request has files but no parameter 'config', which they require\"}",
        ),
    },
    Difference {
        decision: "an upload that failed shows in the index, also where another version serves on",
        on: On::Cases(&[
            "control: index of what is ready after loads that failed",
            "control: index of a named repository",
            "control: index of what is ready after an unload",
        ]),
        becomes: Becomes::Replaced(
            "{\"name\":\"one\",\"version\":\"1\",\"state\":\"READY\"}",
            "{\"name\":\"one\",\"version\":\"1\",\"state\":\"READY\",\"reason\":\"the load request has files but \
             no parameter 'config', which they require\"}",
        ),
    },
    Difference {
        decision: "an upload that failed shows in the index over gRPC too",
        on: On::Cases(&["control: index by gRPC"]),
        becomes: Becomes::Replaced(
            "  1: \"one\"\n  2: \"1\"\n  3: \"READY\"\n",
            "  1: \"one\"\n  2: \"1\"\n  3: \"READY\"\n  4: \"the load request has files but no parameter 'config', \
             which they require\"\n",
        ),
    },
    Difference {
        decision: "a parameter of the wrong type is 400 and named",
        on: On::Cases(&["control: load one with {\"parameters\":{\"foo\":1}}"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"Unable to parse 'foo': attempt to access JSON non-string as string\"}",
        ),
    },
    Difference {
        decision: "a configuration of the wrong type is 400 and named",
        on: On::Cases(&["control: load one with {\"parameters\":{\"config\":1}}"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"Unable to parse 'config': attempt to access JSON non-string as string\"}",
        ),
    },
    Difference {
        decision: "parameters that are a list have no members; Triton says 500",
        on: On::Cases(&["control: load one with {\"parameters\":[]}"]),
        becomes: Becomes::Answer("200 application/json"),
    },
    Difference {
        decision: "a body that is no object is refused; Triton takes it for an empty one",
        on: On::Cases(&["control: load one with []", "control: index with []", "control: index with null"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"failed to parse the request JSON buffer: expected an object\"}",
        ),
    },
    Difference {
        decision: "`ready` of another type is refused in the words of later Tritons",
        on: On::Cases(&["control: index with {\"ready\":1}", "control: index with {\"ready\":\"yes\"}"]),
        becomes: Becomes::Answer("400 application/json\n{\"error\":\"Invalid value for 'ready': expected a boolean\"}"),
    },
    Difference {
        decision: "`unload_dependents` of another type is refused; Triton ignores it for a model that it does not know",
        on: On::Cases(&["control: unload nope {\"parameters\":{\"unload_dependents\":1}}"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean\"}",
        ),
    },
    Difference {
        decision: "a body that is no JSON is refused for any model",
        on: On::Cases(&["control: unload nope {"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"failed to parse the request JSON buffer: Missing a name for object member. at 1\"}",
        ),
    },
];
