//! The gRPC routing table, and the RPCs that are answered at once: liveness, readiness, metadata, configuration,
//! statistics, health. Their answers are functions of [`ServerFacts`], which the shard implements. The texts are those
//! of Triton's `grpc_server.cc` and `common.cc`.

use std::sync::Arc;

use bytes::Bytes;

use crate::framing::frame;
use crate::framing::{framed, read};
use crate::grpc::repository::RepositoryRpc;
use crate::grpc::{logging, statistics};
use crate::logging::{LogState, LogUpdate};
use crate::route::{RegionAction, version_of};
use crate::shared_memory::RegionKind;
use crate::text::TeiRpc;
use base::error::Error;
use base::metrics::ModelStatistics;
use model::{ModelSpec, TensorSpec};
use wire::proto::health::health_check_response::ServingStatus;
use wire::proto::health::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse};
use wire::proto::inference as proto;
use wire::proto::inference::model_metadata_response::TensorMetadata;
use wire::protobuf::{bytes_size, put_bytes_head};

/// The RPC that a path names, grouped by the way in which it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rpc {
    /// Unary, answered at once by [`answer`].
    Control(ControlRpc),
    /// `ModelInfer`: unary, answered by a model.
    ModelInfer,
    /// `ModelReady`: unary, answered by [`ready_answer`] after the model's own readiness check, if
    /// it has one.
    ModelReady,
    /// `ModelStreamInfer`: a stream of requests, each answered by a model with any number of responses.
    ModelStreamInfer,
    /// The model repository: unary, answered by the control thread.
    Repository(RepositoryRpc),
    /// Shared memory regions: unary, answered by the thread that owns the registry.
    SharedMemory(RegionKind, RegionAction),
    /// `ServerReflectionInfo` of v1 or v1alpha: a stream of requests, each answered by
    /// [`super::reflection::answer`].
    ServerReflectionInfo,
    /// An RPC of text-embeddings-inference: unary, answered by a model of texts or its tokenizer.
    Tei(TeiRpc),
    /// The stream of one: texts, each answered in its turn, or of `RerankStream` all at once.
    TeiStream(TeiRpc),
    /// `TraceSetting`: unary, answered with the settings once all shards have a change.
    TraceSetting,
    /// `grpc.health.v1.Health/Watch`: one request, then [`health`] at once and after each change.
    Watch,
}

/// The RPCs that are answered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRpc {
    /// `grpc.health.v1.Health/Check`.
    HealthCheck,
    /// `grpc.health.v1.Health/List`.
    HealthList,
    /// `LogSettings`.
    LogSettings,
    /// `ModelConfig`.
    ModelConfig,
    /// `ModelMetadata`.
    ModelMetadata,
    /// `ModelStatistics`.
    ModelStatistics,
    /// `ServerLive`.
    ServerLive,
    /// `ServerMetadata`.
    ServerMetadata,
    /// `ServerReady`.
    ServerReady,
}

impl Rpc {
    /// The RPC that a path names.
    ///
    /// # Errors
    ///
    /// `Unsupported`, without a text as in gRPC's own servers, for an unknown path.
    pub fn from_path(path: &[u8]) -> Result<Self, Error> {
        let unknown = || Error::unsupported("");
        let path = path.strip_prefix(b"/").ok_or_else(unknown)?;
        let slash = path.iter().position(|byte| *byte == b'/').ok_or_else(unknown)?;
        // `method` keeps its leading slash.
        let (service, method) = path.split_at_checked(slash).ok_or_else(unknown)?;
        let rpc = match service {
            b"inference.GRPCInferenceService" => Self::from_method(method),
            b"grpc.health.v1.Health" => Self::from_health_method(method),
            b"grpc.reflection.v1.ServerReflection" | b"grpc.reflection.v1alpha.ServerReflection" => {
                (method == b"/ServerReflectionInfo").then_some(Self::ServerReflectionInfo)
            }
            service => TeiRpc::from_path(service, method)
                .map(|(rpc, is_stream)| if is_stream { Self::TeiStream(rpc) } else { Self::Tei(rpc) }),
        };
        rpc.ok_or_else(unknown)
    }

    fn from_method(method: &[u8]) -> Option<Self> {
        Some(match method {
            b"/ModelInfer" => Self::ModelInfer,
            b"/ServerLive" => Self::Control(ControlRpc::ServerLive),
            b"/ServerReady" => Self::Control(ControlRpc::ServerReady),
            b"/ModelReady" => Self::ModelReady,
            b"/ServerMetadata" => Self::Control(ControlRpc::ServerMetadata),
            b"/ModelMetadata" => Self::Control(ControlRpc::ModelMetadata),
            b"/ModelConfig" => Self::Control(ControlRpc::ModelConfig),
            b"/ModelStreamInfer" => Self::ModelStreamInfer,
            b"/ModelStatistics" => Self::Control(ControlRpc::ModelStatistics),
            b"/RepositoryIndex" => Self::Repository(RepositoryRpc::Index),
            b"/RepositoryModelLoad" => Self::Repository(RepositoryRpc::Load),
            b"/RepositoryModelUnload" => Self::Repository(RepositoryRpc::Unload),
            b"/SystemSharedMemoryStatus" => Self::SharedMemory(RegionKind::System, RegionAction::Status),
            b"/SystemSharedMemoryRegister" => Self::SharedMemory(RegionKind::System, RegionAction::Register),
            b"/SystemSharedMemoryUnregister" => Self::SharedMemory(RegionKind::System, RegionAction::Unregister),
            b"/CudaSharedMemoryStatus" => Self::SharedMemory(RegionKind::Cuda, RegionAction::Status),
            b"/CudaSharedMemoryRegister" => Self::SharedMemory(RegionKind::Cuda, RegionAction::Register),
            b"/CudaSharedMemoryUnregister" => Self::SharedMemory(RegionKind::Cuda, RegionAction::Unregister),
            b"/TraceSetting" => Self::TraceSetting,
            b"/LogSettings" => Self::Control(ControlRpc::LogSettings),
            _ => return None,
        })
    }

    fn from_health_method(method: &[u8]) -> Option<Self> {
        Some(match method {
            b"/Check" => Self::Control(ControlRpc::HealthCheck),
            b"/List" => Self::Control(ControlRpc::HealthList),
            b"/Watch" => Self::Watch,
            _ => return None,
        })
    }
}

/// The facts about the server that the answers report. Implemented by the shard.
pub trait ServerFacts {
    /// The server's name.
    fn name(&self) -> &str;

    /// The server's version.
    fn version(&self) -> &str;

    /// The protocol extensions that it supports.
    fn extensions(&self) -> &[&str];

    /// Returns true if the process is up.
    fn is_live(&self) -> bool;

    /// Returns true if it can serve requests.
    fn is_ready(&self) -> bool;

    /// A model of which the given version, or any version if `None`, is ready.
    ///
    /// # Errors
    ///
    /// The error for the client, in either protocol, if the model is unknown or not ready.
    fn model(&self, name: &str, version: Option<u64>) -> Result<ModelFacts, Error>;

    /// Statistics of one model or, without a name, of all, sorted by name and version; of one version or, without
    /// one, of all.
    ///
    /// # Errors
    ///
    /// The error for the client, in either protocol, if the model or version is unknown.
    fn statistics(&self, name: Option<&str>, version: Option<u64>) -> Result<Vec<ModelStatistics>, Error>;

    /// Changes the log settings if `update` has any, and returns the settings in effect.
    ///
    /// # Errors
    ///
    /// The error for the client, in either protocol, if it may not change them.
    fn log_settings(&self, update: &LogUpdate) -> Result<LogState, Error>;
}

/// The facts about a model that the answers report.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// Its checked configuration.
    pub spec: Arc<ModelSpec>,
    /// Its ready versions, or only the requested one.
    pub versions: Vec<u64>,
}

/// Answers a request message with a framed response message.
///
/// # Errors
///
/// `Internal` for bytes that are not the request message, else the error of [`ServerFacts`] or of a malformed version.
pub fn answer(control: ControlRpc, message: &[u8], facts: &impl ServerFacts) -> Result<Bytes, Error> {
    // Requests whose fields are ignored are decoded all the same, so that every RPC refuses malformed bytes.
    match control {
        ControlRpc::HealthCheck => read::<HealthCheckRequest>(message).and_then(|_| health(facts.is_ready())),
        ControlRpc::HealthList => read::<HealthListRequest>(message).and_then(|_| health_list(facts)),
        ControlRpc::LogSettings => logging::answer(&facts.log_settings(&logging::update(message)?)?),
        ControlRpc::ModelConfig => model_config(&read(message)?, facts),
        ControlRpc::ModelMetadata => model_metadata(&read(message)?, facts),
        ControlRpc::ModelStatistics => model_statistics(&read(message)?, facts),
        ControlRpc::ServerLive => {
            read::<proto::ServerLiveRequest>(message)?;
            framed(&proto::ServerLiveResponse { live: facts.is_live() })
        }
        ControlRpc::ServerMetadata => {
            read::<proto::ServerMetadataRequest>(message)?;
            server_metadata(facts)
        }
        ControlRpc::ServerReady => {
            read::<proto::ServerReadyRequest>(message)?;
            framed(&proto::ServerReadyResponse { ready: facts.is_ready() })
        }
    }
}

impl ControlRpc {
    /// The model whose configuration or metadata a message asks for. [`answer`] reports messages
    /// that cannot be read.
    pub fn wanted_model(self, message: &[u8]) -> Option<String> {
        match self {
            Self::ModelConfig => read::<proto::ModelConfigRequest>(message).ok().map(|request| request.name),
            Self::ModelMetadata => read::<proto::ModelMetadataRequest>(message).ok().map(|request| request.name),
            _ => None,
        }
    }
}

/// The framed response of `Check` and `Watch`. The same for any service name, as in Triton: probes written for it
/// send arbitrary names.
///
/// # Errors
///
/// Never: the message is small.
pub fn health(is_ready: bool) -> Result<Bytes, Error> {
    framed(&health_response(is_ready))
}

const fn health_response(is_ready: bool) -> HealthCheckResponse {
    let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status as i32 }
}

/// Health of the whole server, under the empty name, and of its service.
fn health_list(facts: &impl ServerFacts) -> Result<Bytes, Error> {
    let names = ["", "inference.GRPCInferenceService"];
    let statuses = names.map(|name| (name.to_owned(), health_response(facts.is_ready())));
    framed(&HealthListResponse { statuses: statuses.into() })
}

fn server_metadata(facts: &impl ServerFacts) -> Result<Bytes, Error> {
    framed(&proto::ServerMetadataResponse {
        name: facts.name().to_owned(),
        version: facts.version().to_owned(),
        extensions: facts.extensions().iter().map(|name| (*name).to_owned()).collect(),
    })
}

/// Returns the name and version that a `ModelReady` asks for.
///
/// # Errors
///
/// `Internal` for bytes that are not the message, `InvalidArgument` for a malformed version.
pub fn ready_question(message: &[u8]) -> Result<(String, Option<u64>), Error> {
    let request: proto::ModelReadyRequest = read(message)?;
    let version = version_of(&request.version)?;
    Ok((request.name, version))
}

/// The framed response of `ModelReady`. An unknown model is reported as not ready, without an error
/// (Triton 2.51 and `tritonclient`).
///
/// # Errors
///
/// Never: the message is small.
pub fn ready_answer(is_ready: bool) -> Result<Bytes, Error> {
    framed(&proto::ModelReadyResponse { ready: is_ready })
}

fn model_statistics(request: &proto::ModelStatisticsRequest, facts: &impl ServerFacts) -> Result<Bytes, Error> {
    let version = version_of(&request.version)?;
    let name = (!request.name.is_empty()).then_some(request.name.as_str());
    framed(&statistics::response(facts.statistics(name, version)?))
}

fn model_metadata(request: &proto::ModelMetadataRequest, facts: &impl ServerFacts) -> Result<Bytes, Error> {
    let model = facts.model(&request.name, version_of(&request.version)?)?;
    framed(&proto::ModelMetadataResponse {
        name: model.spec.name.clone(),
        versions: model.versions.iter().map(u64::to_string).collect(),
        platform: model.spec.platform.clone(),
        inputs: model.spec.inputs.iter().map(tensor_metadata).collect(),
        outputs: model.spec.usual_outputs().map(tensor_metadata).collect(),
    })
}

fn tensor_metadata(tensor: &TensorSpec) -> TensorMetadata {
    TensorMetadata {
        name: tensor.name.clone(),
        datatype: tensor.datatype.name().to_owned(),
        shape: tensor.shape.to_vec(),
    }
}

/// Copies the configuration, which is stored encoded, into the response's only field.
fn model_config(request: &proto::ModelConfigRequest, facts: &impl ServerFacts) -> Result<Bytes, Error> {
    const CONFIG: u32 = 1;
    let model = facts.model(&request.name, version_of(&request.version)?)?;
    let config = &model.spec.config_message;
    let mut out = frame(bytes_size(CONFIG, config.len()))?;
    put_bytes_head(CONFIG, config.len(), &mut out);
    out.extend_from_slice(config);
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;

    use super::*;
    use crate::route::unavailable_model;
    use crate::testing::{self, input, output, spec};
    use base::error::Code;
    use base::tensor::Datatype;
    use prost::Message;
    use wire::grpc::PREFIX_SIZE;
    use wire::grpc::prefix;
    use wire::proto::DESCRIPTORS;

    /// A server with one model `m`, version 3.
    struct Server {
        is_ready: bool,
        spec: Arc<ModelSpec>,
    }

    impl ServerFacts for Server {
        fn name(&self) -> &'static str {
            "triton"
        }

        fn version(&self) -> &'static str {
            "0.1.0"
        }

        fn extensions(&self) -> &[&str] {
            &["classification", "binary_tensor_data"]
        }

        fn is_live(&self) -> bool {
            true
        }

        fn is_ready(&self) -> bool {
            self.is_ready
        }

        fn model(&self, name: &str, version: Option<u64>) -> Result<ModelFacts, Error> {
            match (name, version) {
                ("m", None | Some(3)) => Ok(ModelFacts { spec: Arc::clone(&self.spec), versions: vec![3] }),
                _ => Err(Error::not_found(format!("Request for unknown model: '{name}' is not found"))),
            }
        }

        fn statistics(&self, name: Option<&str>, version: Option<u64>) -> Result<Vec<ModelStatistics>, Error> {
            match (name, version) {
                (None, _) => Ok(vec![testing::statistics(), ModelStatistics::default()]),
                (Some("m"), None | Some(3)) => Ok(vec![testing::statistics()]),
                (Some(name), _) => Err(unavailable_model(name)),
            }
        }

        fn log_settings(&self, update: &LogUpdate) -> Result<LogState, Error> {
            let (info, verbose) = (update.info.unwrap_or(true), update.verbose.unwrap_or(0));
            Ok(LogState { file: "", info, warning: true, error: true, verbose, format: "default" })
        }
    }

    fn server(is_ready: bool) -> Server {
        let config = proto::ModelConfig { name: "m".to_owned(), max_batch_size: 8, ..Default::default() };
        let inputs = vec![input("A", Datatype::Int32, &[4])];
        let spec = spec(8, inputs, vec![output("X", Datatype::Fp32, &[-1])]);
        Server { is_ready, spec: Arc::new(ModelSpec { config_message: config.encode_to_vec().into(), ..spec }) }
    }

    fn ask<M: Message + Default>(control: ControlRpc, request: &impl Message) -> Result<M, Error> {
        ask_of(&server(true), control, request)
    }

    fn ask_of<M: Message + Default>(server: &Server, control: ControlRpc, request: &impl Message) -> Result<M, Error> {
        let answer = answer(control, &request.encode_to_vec(), server)?;
        let (start, message) = answer.split_at(PREFIX_SIZE);
        assert_eq!(Some(start), prefix(message.len()).as_ref().map(|prefix| &prefix[..]));
        Ok(M::decode(message).unwrap())
    }

    #[test]
    fn every_rpc_of_the_services_has_a_path_and_other_paths_are_refused() {
        let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
        for service in pool.services() {
            for method in service.methods() {
                let path = format!("/{}/{}", service.full_name(), method.name());
                let rpc = Rpc::from_path(path.as_bytes());
                assert!(rpc.is_ok(), "{path}");
                for path in [&path[1..], &format!("{path}/"), &format!("{path}x"), &format!("/x{path}")] {
                    assert_eq!(Rpc::from_path(path.as_bytes()), Err(Error::unsupported("")), "{path}");
                }
            }
        }
        for path in ["", "/", "//", "/inference.GRPCInferenceService", "/inference.GRPCInferenceService/modelInfer"] {
            assert_eq!(Rpc::from_path(path.as_bytes()), Err(Error::unsupported("")), "{path}");
        }
        assert_eq!(Rpc::from_path(b"/inference.GRPCInferenceService/ModelInfer"), Ok(Rpc::ModelInfer));
    }

    #[test]
    fn the_server_tells_of_itself() {
        let live: proto::ServerLiveResponse = ask(ControlRpc::ServerLive, &proto::ServerLiveRequest {}).unwrap();
        assert!(live.live);
        let metadata: proto::ServerMetadataResponse =
            ask(ControlRpc::ServerMetadata, &proto::ServerMetadataRequest {}).unwrap();
        assert_eq!((metadata.name.as_str(), metadata.version.as_str()), ("triton", "0.1.0"));
        assert_eq!(metadata.extensions, ["classification", "binary_tensor_data"]);
        for is_ready in [true, false] {
            let server = server(is_ready);
            let ready: proto::ServerReadyResponse =
                ask_of(&server, ControlRpc::ServerReady, &proto::ServerReadyRequest {}).unwrap();
            assert_eq!(ready.ready, is_ready);
            let request = HealthCheckRequest { service: "any".to_owned() };
            let health: HealthCheckResponse = ask_of(&server, ControlRpc::HealthCheck, &request).unwrap();
            let want = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
            assert_eq!(health.status(), want);
            let list: HealthListResponse = ask_of(&server, ControlRpc::HealthList, &HealthListRequest {}).unwrap();
            let names: Vec<_> = list.statuses.iter().map(|(name, health)| (name.as_str(), health.status())).collect();
            assert_eq!(names, [("", want), ("inference.GRPCInferenceService", want)]);
        }
    }

    #[test]
    fn a_model_is_asked_for_by_name_and_version_and_is_ready_or_not() {
        let check = |name: &str, version: &str, want: Result<Option<u64>, Code>| {
            let request = proto::ModelReadyRequest { name: name.to_owned(), version: version.to_owned() };
            let got = ready_question(&request.encode_to_vec()).map_err(|error| error.code());
            assert_eq!(got, want.map(|version| (name.to_owned(), version)), "{name} {version}");
        };
        check("m", "", Ok(None));
        check("m", "3", Ok(Some(3)));
        check("", "4", Ok(Some(4)));
        check("m", "abc", Err(Code::InvalidArgument));
        assert_eq!(ready_question(&[0xff]), Err(Error::internal("Unable to parse request")));
        for is_ready in [true, false] {
            let message = ready_answer(is_ready).unwrap().split_off(PREFIX_SIZE);
            assert_eq!(proto::ModelReadyResponse::decode(message).unwrap().ready, is_ready);
        }
    }

    #[test]
    fn a_model_is_described_by_its_metadata_and_configuration() {
        let request = proto::ModelMetadataRequest { name: "m".to_owned(), version: String::new() };
        let metadata: proto::ModelMetadataResponse = ask(ControlRpc::ModelMetadata, &request).unwrap();
        let tensor = |name: &str, datatype: &str, shape: &[i64]| TensorMetadata {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: shape.to_vec(),
        };
        let want = proto::ModelMetadataResponse {
            name: "m".to_owned(),
            versions: vec!["3".to_owned()],
            platform: "identity".to_owned(),
            inputs: vec![tensor("A", "INT32", &[-1, 4])],
            outputs: vec![tensor("X", "FP32", &[-1, -1])],
        };
        assert_eq!(metadata, want);

        let request = proto::ModelConfigRequest { name: "m".to_owned(), version: "3".to_owned() };
        let config: proto::ModelConfigResponse = ask(ControlRpc::ModelConfig, &request).unwrap();
        assert_eq!(config.config.map(|config| (config.name, config.max_batch_size)), Some(("m".to_owned(), 8)));

        let request = proto::ModelConfigRequest { name: "nope".to_owned(), version: String::new() };
        let error = ask::<proto::ModelConfigResponse>(ControlRpc::ModelConfig, &request).unwrap_err();
        assert_eq!(error, Error::not_found("Request for unknown model: 'nope' is not found"));
    }

    fn statistics(name: &str, version: &str) -> Result<proto::ModelStatisticsResponse, Error> {
        let request = proto::ModelStatisticsRequest { name: name.to_owned(), version: version.to_owned() };
        ask(ControlRpc::ModelStatistics, &request)
    }

    #[test]
    fn statistics_are_those_of_a_model_or_of_all() {
        let of = |count, ns| Some(proto::StatisticDuration { count, ns });
        let batch = |batch_size, compute_input, compute_infer, compute_output| proto::InferBatchStatistics {
            batch_size,
            compute_input: of(1, compute_input),
            compute_infer: of(1, compute_infer),
            compute_output: of(1, compute_output),
        };
        let want = proto::ModelStatistics {
            name: "m".to_owned(),
            version: "3".to_owned(),
            last_inference: 1_700,
            inference_count: 9,
            execution_count: 2,
            inference_stats: Some(proto::InferStatistics {
                success: of(4, 100),
                fail: of(1, 7),
                queue: of(4, 10),
                compute_input: of(4, 20),
                compute_infer: of(4, 60),
                compute_output: of(4, 10),
                cache_hit: of(0, 0),
                cache_miss: of(0, 0),
            }),
            batch_stats: vec![batch(1, 5, 20, 2), batch(8, 6, 30, 3)],
            ..Default::default()
        };
        for version in ["", "3"] {
            assert_eq!(statistics("m", version).unwrap().model_stats, std::slice::from_ref(&want), "{version}");
        }
        let all = statistics("", "").unwrap().model_stats;
        assert_eq!((all.len(), &all[0]), (2, &want));
        assert_eq!(statistics("nope", ""), Err(Error::invalid("requested model 'nope' is not available")));
        assert_eq!(statistics("m", "x").map_err(|error| error.code()), Err(Code::InvalidArgument));
    }

    #[test]
    fn every_rpc_refuses_bytes_that_are_not_its_message() {
        for control in [
            ControlRpc::HealthCheck,
            ControlRpc::HealthList,
            ControlRpc::LogSettings,
            ControlRpc::ModelConfig,
            ControlRpc::ModelMetadata,
            ControlRpc::ModelStatistics,
            ControlRpc::ServerLive,
            ControlRpc::ServerMetadata,
            ControlRpc::ServerReady,
        ] {
            let error = answer(control, &[0xff], &server(true)).unwrap_err();
            assert_eq!(error, Error::internal("Unable to parse request"), "{control:?}");
        }
    }
}
