//! A model as clients of KServe V1, TensorFlow Serving and OpenAI ask for it: one object with the members of all three.

use crate::rest::encode::JSON;
use crate::rest::server::write_list;
use base::tensor::Datatype;
use model::repository::index::VersionState;
use model::{ModelSpec, TensorSpec};
use wire::json::writer;
use wire::message::Reply;

/// The state of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V1Version {
    /// Its number.
    pub version: u64,
    /// Its state.
    pub state: VersionState,
    /// True if it does not serve because something failed.
    pub has_failed: bool,
}

/// The state of a model: 200 if it is ready, 503 if not, as KServe V1 has it.
pub fn status_reply(name: &str, is_ready: bool, versions: &[V1Version]) -> Reply {
    let mut json = b"{".to_vec();
    if !is_ready {
        json.extend_from_slice(b"\"error\":");
        writer::string(&format!("model '{name}' is not ready"), &mut json);
        json.push(b',');
    }
    json.extend_from_slice(b"\"name\":");
    writer::string(name, &mut json);
    json.extend_from_slice(b",\"ready\":");
    writer::boolean(is_ready, &mut json);
    json.extend_from_slice(b",\"model_version_status\":");
    write_list(versions.iter(), &mut json, write_version);
    json.extend_from_slice(b",\"id\":");
    writer::string(name, &mut json);
    json.extend_from_slice(b",\"object\":\"model\",\"created\":0,\"owned_by\":\"deuteron\"}");
    Reply::new(if is_ready { 200 } else { 503 }, JSON, json)
}

/// Writes a version with TensorFlow Serving's states. Health is open to all: the cause of a failure is in the repository
/// index.
fn write_version(version: &V1Version, json: &mut Vec<u8>) {
    let state = match version.state {
        VersionState::Loading => "LOADING",
        VersionState::Ready => "AVAILABLE",
        VersionState::Unavailable => "END",
        VersionState::Unloading => "UNLOADING",
    };
    let (code, message) = if version.has_failed {
        ("INTERNAL", "the load failed: /v2/repository/index has the cause")
    } else {
        ("OK", "")
    };
    let status = format!("\"status\":{{\"error_code\":\"{code}\",\"error_message\":\"{message}\"}}");
    let text = format!("{{\"version\":\"{}\",\"state\":\"{state}\",{status}}}", version.version);
    json.extend_from_slice(text.as_bytes());
}

/// The metadata of a model version, as TensorFlow Serving has it: one signature with all tensors.
pub fn metadata_reply(spec: &ModelSpec, version: u64) -> Reply {
    let mut json = b"{\"model_spec\":{\"name\":".to_vec();
    writer::string(&spec.name, &mut json);
    json.extend_from_slice(format!(",\"signature_name\":\"\",\"version\":\"{version}\"}},\"metadata\":").as_bytes());
    json.extend_from_slice(b"{\"signature_def\":{\"signature_def\":{\"serving_default\":{\"inputs\":");
    write_tensors(spec.inputs.iter(), &mut json);
    json.extend_from_slice(b",\"outputs\":");
    write_tensors(spec.usual_outputs(), &mut json);
    json.extend_from_slice(b",\"method_name\":\"tensorflow/serving/predict\"}}}}}");
    Reply::new(200, JSON, json)
}

fn write_tensors<'a>(tensors: impl Iterator<Item = &'a TensorSpec>, json: &mut Vec<u8>) {
    json.push(b'{');
    for (index, tensor) in tensors.enumerate() {
        writer::comma(index, json);
        writer::string(&tensor.name, json);
        json.extend_from_slice(b":{\"dtype\":\"");
        json.extend_from_slice(datatype_name(tensor.datatype).as_bytes());
        json.extend_from_slice(b"\",\"tensor_shape\":{\"dim\":");
        write_list(tensor.shape.iter(), json, |size, json| {
            json.extend_from_slice(format!("{{\"size\":\"{size}\",\"name\":\"\"}}").as_bytes());
        });
        json.extend_from_slice(b",\"unknown_rank\":false},\"name\":");
        writer::string(&tensor.name, json);
        json.push(b'}');
    }
    json.push(b'}');
}

/// TensorFlow's name of a datatype.
const fn datatype_name(datatype: Datatype) -> &'static str {
    match datatype {
        Datatype::Bf16 => "DT_BFLOAT16",
        Datatype::Bool => "DT_BOOL",
        Datatype::Bytes => "DT_STRING",
        Datatype::Fp16 => "DT_HALF",
        Datatype::Fp32 => "DT_FLOAT",
        Datatype::Fp64 => "DT_DOUBLE",
        Datatype::Int8 => "DT_INT8",
        Datatype::Int16 => "DT_INT16",
        Datatype::Int32 => "DT_INT32",
        Datatype::Int64 => "DT_INT64",
        Datatype::Uint8 => "DT_UINT8",
        Datatype::Uint16 => "DT_UINT16",
        Datatype::Uint32 => "DT_UINT32",
        Datatype::Uint64 => "DT_UINT64",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{input, output, spec};

    fn body(reply: &Reply) -> serde_json::Value {
        serde_json::from_slice(&reply.body.concat()).unwrap()
    }

    #[test]
    fn a_state_has_the_members_of_each_protocol() {
        let version = |version, state, has_failed| V1Version { version, state, has_failed };
        let ready = status_reply("m", true, &[version(3, VersionState::Ready, false)]);
        let ok = serde_json::json!({"error_code": "OK", "error_message": ""});
        let own = serde_json::json!([{"version": "3", "state": "AVAILABLE", "status": ok}]);
        let want = serde_json::json!({
            "name": "m", "ready": true, "model_version_status": own,
            "id": "m", "object": "model", "created": 0, "owned_by": "deuteron"
        });
        assert_eq!((ready.status, body(&ready)), (200, want));
        let states = [VersionState::Loading, VersionState::Unloading, VersionState::Unavailable];
        let versions: Vec<_> =
            states.into_iter().zip(1..).map(|(state, number)| version(number, state, false)).collect();
        let waits = status_reply("m", false, &versions);
        assert_eq!((waits.status, &body(&waits)["error"]), (503, &serde_json::json!("model 'm' is not ready")));
        let shown: Vec<_> = (0..3).map(|at| body(&waits)["model_version_status"][at]["state"].clone()).collect();
        assert_eq!(shown, ["LOADING", "UNLOADING", "END"]);
        let failed = body(&status_reply("m", false, &[version(1, VersionState::Unavailable, true)]));
        let status = &failed["model_version_status"][0]["status"];
        assert_eq!(status["error_code"], "INTERNAL");
        assert_eq!(status["error_message"], "the load failed: /v2/repository/index has the cause");
    }

    #[test]
    fn metadata_has_one_signature() {
        let model = spec(8, vec![input("a", Datatype::Bytes, &[2])], vec![output("b", Datatype::Fp32, &[-1])]);
        let got = body(&metadata_reply(&model, 4));
        assert_eq!(got["model_spec"], serde_json::json!({"name": "m", "signature_name": "", "version": "4"}));
        let signature = &got["metadata"]["signature_def"]["signature_def"]["serving_default"];
        assert_eq!(signature["method_name"], "tensorflow/serving/predict");
        let dims = serde_json::json!([{"size": "-1", "name": ""}, {"size": "2", "name": ""}]);
        let shape = serde_json::json!({"dim": dims, "unknown_rank": false});
        assert_eq!(
            signature["inputs"]["a"],
            serde_json::json!({"dtype": "DT_STRING", "tensor_shape": shape, "name": "a"})
        );
        assert_eq!(signature["outputs"]["b"]["dtype"], "DT_FLOAT");
    }
}
