//! The models that the host of the server loads by their paths, as SageMaker's multi-model
//! endpoints do (`sagemaker_server.cc`): the body of a load to a [`RepositoryOrder`], the list of
//! the models to replies, and the failures reported with the status that makes SageMaker unload
//! another model.

use bytes::Bytes;

use crate::repository::{LoadOrder, LoadPlace, RepositoryOrder, model_name};
use crate::rest::encode::JSON;
use crate::rest::fault::json_error;
use crate::rest::server::write_list;
use base::error::{Code, Error};
use model::name::{is_model_name, is_plain_name};
use model::repository::index::HostedModel;
use wire::json::{Document, writer};
use wire::message::Reply;

/// The header field with the name of the archive that holds the model.
pub const TARGET_MODEL: &str = "X-Amzn-SageMaker-Target-Model";

/// The directory of the files inside a model's own directory.
const MODEL_DIRECTORY: &str = "model";

/// The operation of `POST /models`. `root` is the directory of all models of the host; `target` is
/// the value of [`TARGET_MODEL`], under which the model is served if it can be a name.
///
/// # Errors
/// `InvalidArgument` for a body, a name or a path that is not as expected.
pub fn load_order(body: &[u8], root: &str, target: Option<&[u8]>) -> Result<RepositoryOrder, Error> {
    let document = Document::parse(body, &[]).map_err(json_error)?;
    let text = |key: &str| -> Result<String, Error> {
        let value =
            document.root().get(key).ok_or_else(|| Error::invalid(format!("the load request has no '{key}'")))?;
        let text = value.as_str().ok_or_else(|| {
            Error::invalid(format!("Unable to parse '{key}': attempt to access JSON non-string as string"))
        })?;
        Ok(text.to_string())
    };
    let (name, url) = (text("model_name")?, text("url")?);
    let name = model_name(&name)?;
    let path = hosted_path(&url, root).ok_or_else(|| {
        Error::invalid(format!("Invalid \"url\" '{url}': expected a path of the form {root}/<hash>/model[/<subdir>]"))
    })?;
    let target = target.and_then(|target| str::from_utf8(target).ok()).filter(|target| is_model_name(target));
    let model = target.unwrap_or(&name).to_owned();
    let place = LoadPlace::Hosted { name, path };
    Ok(RepositoryOrder::Load(LoadOrder { name: model, place, ..LoadOrder::default() }))
}

/// The path that a URL names, if it is that of a model below `root`. It is rebuilt from its parts:
/// none of them leads up or elsewhere.
fn hosted_path(url: &str, root: &str) -> Option<String> {
    let rest = url.strip_prefix(root)?;
    let parts: Vec<&str> = rest.strip_prefix('/')?.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        [_, MODEL_DIRECTORY] | [_, MODEL_DIRECTORY, _] if parts.iter().all(|part| is_plain_name(part)) => {
            Some(format!("{root}/{}", parts.join("/")))
        }
        _ => None,
    }
}

/// The reply to `GET /models`.
pub fn list_reply<'a>(models: impl Iterator<Item = &'a HostedModel>) -> Reply {
    let mut json = Vec::from(b"{\"models\":");
    write_list(models, &mut json, write_model);
    json.push(b'}');
    Reply::new(200, JSON, json)
}

/// The reply to `GET /models/M`.
#[inline]
pub fn model_reply(model: &HostedModel) -> Reply {
    let mut json = Vec::new();
    write_model(model, &mut json);
    Reply::new(200, JSON, json)
}

/// The reply to a load or unload that succeeded.
#[inline]
pub fn done_reply() -> Reply {
    Reply::new(200, JSON, Bytes::new())
}

fn write_model(model: &HostedModel, json: &mut Vec<u8>) {
    json.extend_from_slice(b"{\"modelName\":");
    writer::string(&model.name, json);
    json.extend_from_slice(b",\"modelUrl\":");
    writer::string(&model.url, json);
    json.push(b'}');
}

/// The refusal of an operation on a model that the host has not loaded.
#[inline]
pub fn unknown(name: &str) -> Error {
    Error::not_found(format!("model '{name}' is not loaded"))
}

/// The failure of an invocation as the host is told: a lack of memory has its own code, upon which
/// SageMaker unloads another model and tries again.
#[inline]
pub fn invocation_failure(error: Error) -> Error {
    let lacks_memory = error.code() == Code::Exhausted || LACKS_MEMORY.iter().any(|text| error.text().contains(text));
    if lacks_memory { Error::new(Code::OutOfMemory, error.text().to_owned()) } else { error }
}

/// The failure of a load as the host is told: the model is at fault, not the server.
pub fn load_failure(error: Error) -> Error {
    match invocation_failure(error) {
        error if error.code() == Code::Internal => Error::invalid(error.text().to_owned()),
        error => error,
    }
}

/// The texts of engines that ran out of memory; tritonserver looks for the same.
const LACKS_MEMORY: [&str; 17] = [
    "CUDA out of memory",
    "CUDA_OUT_OF_MEMORY",
    "Out of memory",
    "Out Of Memory",
    "out of memory",
    "MemoryError",
    "OutOfMemory",
    "OOM",
    "Dst tensor is not initialized",
    "Src tensor is not initialized",
    "CNMEM_STATUS_OUT_OF_MEMORY",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "Failed to allocate memory",
    "failed to allocate memory",
    "No space left on device",
];

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "/opt/ml/models";

    fn loaded(body: &str, target: Option<&str>) -> String {
        match load_order(body.as_bytes(), ROOT, target.map(str::as_bytes)) {
            Ok(RepositoryOrder::Load(LoadOrder { name: model, place: LoadPlace::Hosted { name, path }, .. })) => {
                format!("{name} as {model} at {path}")
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
        }
    }

    #[test]
    fn a_load_names_a_model_below_the_root() {
        let body = |url: &str| format!(r#"{{"model_name":"h1","url":"{url}"}}"#);
        let check = |url: &str, want: &str| assert_eq!(loaded(&body(url), None), want, "{url}");
        check("/opt/ml/models/a1/model", "h1 as h1 at /opt/ml/models/a1/model");
        check("/opt/ml/models/a1//model/", "h1 as h1 at /opt/ml/models/a1/model");
        check("/opt/ml/models/a1/model/x.y", "h1 as h1 at /opt/ml/models/a1/model/x.y");
        for url in [
            "",
            "/",
            "/opt/ml/models",
            "/opt/ml/models/a1",
            "/opt/ml/models/a1/other",
            "/opt/ml/models/a1/model/x/y",
            "/opt/ml/models/../model",
            "/opt/ml/models/a1/model/..",
            "/opt/ml/models/../../../proc/model",
            "/opt/ml/modelsx/a1/model",
            "opt/ml/models/a1/model",
            "/dev/a1/model",
            "/opt/ml/models/a 1/model",
            "/opt/ml/models/a1\\u0000/model",
        ] {
            let got = loaded(&body(url), None);
            assert!(got.starts_with("400 Invalid \"url\" '"), "{url}: {got}");
            assert!(got.ends_with("': expected a path of the form /opt/ml/models/<hash>/model[/<subdir>]"), "{got}");
        }
        let url = body("/opt/ml/models/a1/model");
        assert_eq!(loaded(&url, Some("resnet.tar.gz")), "h1 as resnet.tar.gz at /opt/ml/models/a1/model");
        assert_eq!(loaded(&url, Some("a/b.tar.gz")), "h1 as h1 at /opt/ml/models/a1/model", "no name of a model");
        assert_eq!(loaded(r#"{"model_name":"a"}"#, None), "400 the load request has no 'url'");
        assert_eq!(loaded(r#"{"url":"a"}"#, None), "400 the load request has no 'model_name'");
        assert!(loaded(r#"{"model_name":1,"url":"a"}"#, None).starts_with("400 Unable to parse 'model_name'"));
        assert!(loaded(&url.replace("h1", "../h"), None).starts_with("400 invalid model name '../h'"));
        for body in ["", "[]", "x", "{"] {
            assert!(loaded(body, None).starts_with("400 "), "{body}: {}", loaded(body, None));
        }
    }

    #[test]
    fn models_are_listed_as_sagemaker_reads_them() {
        let model = |name: &str| HostedModel { name: name.to_owned(), url: format!("/opt/ml/models/{name}") };
        let text = |reply: Reply| String::from_utf8(reply.body.concat()).unwrap();
        assert_eq!(text(list_reply([].iter())), r#"{"models":[]}"#);
        let two = [model("a"), model("b")];
        let want = r#"{"models":[{"modelName":"a","modelUrl":"/opt/ml/models/a"},{"modelName":"b","modelUrl":"/opt/ml/models/b"}]}"#;
        assert_eq!(text(list_reply(two.iter())), want);
        assert_eq!(text(model_reply(&two[0])), r#"{"modelName":"a","modelUrl":"/opt/ml/models/a"}"#);
    }

    #[test]
    fn what_lacks_memory_is_told_as_such_and_what_fails_to_load_is_the_models_fault() {
        let status = |error: &Error| error.code().on_wire().0;
        for text in ["x: CUDA out of memory.", "MemoryError: y", "write: No space left on device"] {
            for failure in [invocation_failure, load_failure] {
                let told = failure(Error::internal(text));
                assert_eq!((status(&told), told.text()), (507, text));
            }
        }
        assert_eq!(status(&invocation_failure(Error::new(Code::Exhausted, "no memory left"))), 507);
        assert_eq!(status(&invocation_failure(Error::internal("a"))), 500);
        assert_eq!(status(&load_failure(Error::internal("a"))), 400);
        assert_eq!(status(&load_failure(Error::new(Code::Conflict, "a"))), 409);
        assert_eq!(status(&unknown("a")), 404);
    }
}
