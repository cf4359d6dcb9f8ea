//! The flags of the front ends of hosting services. `settings::front_end` reads the services'
//! variables of the environment.

use std::net::IpAddr;

use crate::Settings;
use crate::front_end::port_range;
use crate::value::{parse_address, parse_port};
use flags::Fallback::{Text, Value};
use flags::Flag;
use flags::Takes::One;
use flags::{parse_bool, set};

const BOOL: &str = "true|false";

pub(super) const FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["allow-sagemaker"],
        takes: One(BOOL),
        default: Value("false"),
        help: "Serve SageMaker's paths: /ping, /invocations and, for multi-model endpoints, /models. \
               SAGEMAKER_TRITON_DEFAULT_MODEL_NAME names the model of /invocations, SAGEMAKER_TRITON_INFERENCE_TYPE \
               says what it is (infer, generate, generate_stream), SAGEMAKER_TRITON_PING_MODE what a ping asks for \
               (ready, live)",
        apply: |settings, value| set(&mut settings.foreign.sagemaker.is_on, parse_bool(value)),
    },
    Flag {
        names: &["sagemaker-port"],
        takes: One("PORT"),
        default: Text("SAGEMAKER_BIND_TO_PORT, else 8080"),
        help: "Port for SageMaker's paths, over HTTP/1.1; 0 picks a free one",
        apply: |settings, value| set(&mut settings.foreign.sagemaker.port, parse_port(value).map(Some)),
    },
    Flag {
        names: &["sagemaker-address"],
        takes: One("ADDRESS"),
        default: Value("0.0.0.0"),
        help: "Address to listen on for SageMaker's paths",
        apply: |settings, value| set::<IpAddr>(&mut settings.foreign.sagemaker.address, parse_address(value)),
    },
    Flag {
        names: &["sagemaker-safe-port-range"],
        takes: One("FIRST-LAST"),
        default: Text("SAGEMAKER_SAFE_PORT_RANGE, else any"),
        help: "Ports that the others at SageMaker's address may have; the server does not start with another",
        apply: |settings, value| set(&mut settings.foreign.sagemaker.safe_ports, port_range(value).map(Some)),
    },
    Flag {
        names: &["sagemaker-models-directory"],
        takes: One("/DIRECTORY"),
        default: Value("/opt/ml/models"),
        help: "The directory that the models of POST /models must be below, as DIRECTORY/HASH/model; nothing else of \
               the disk is loaded by a path",
        apply: |settings, value| {
            settings.foreign.sagemaker.models_root = value.trim_end_matches('/').to_owned();
            let is_absolute = settings.foreign.sagemaker.models_root.starts_with('/');
            if is_absolute { Ok(()) } else { Err("expected an absolute path of a directory".to_owned()) }
        },
    },
    Flag {
        names: &["allow-vertex-ai"],
        takes: One(BOOL),
        default: Text("false; with AIP_MODE=PREDICTION true, and then --allow-http and --allow-grpc are false"),
        help: "Serve Vertex AI's paths: AIP_HEALTH_ROUTE, and AIP_PREDICT_ROUTE, where X-Vertex-Ai-Triton-Redirect leads \
               to what reads. AIP_STORAGE_URI is the model repository where no flag names one",
        apply: |settings, value| set(&mut settings.foreign.vertex_ai.is_on, parse_bool(value)),
    },
    Flag {
        names: &["vertex-ai-port"],
        takes: One("PORT"),
        default: Text("AIP_HTTP_PORT, else 8080"),
        help: "Port for Vertex AI's paths, over HTTP/1.1; 0 picks a free one",
        apply: |settings, value| set(&mut settings.foreign.vertex_ai.port, parse_port(value).map(Some)),
    },
    Flag {
        names: &["vertex-ai-address"],
        takes: One("ADDRESS"),
        default: Value("0.0.0.0"),
        help: "Address to listen on for Vertex AI's paths",
        apply: |settings, value| set::<IpAddr>(&mut settings.foreign.vertex_ai.address, parse_address(value)),
    },
    Flag {
        names: &["vertex-ai-default-model"],
        takes: One("NAME"),
        default: Text("the only model that is loaded; there must be one"),
        help: "The model of predictions of Vertex AI that are not redirected; it must be loaded",
        apply: |settings, value| {
            settings.foreign.vertex_ai.model = Some(value.to_owned()).filter(|name| !name.is_empty());
            Ok(())
        },
    },
];
