//! Which RPC a path names, and the answers of those that need no model to run: liveness, readiness,
//! metadata, configuration, health. They are functions of [`Facts`], which the shard brings. Texts
//! as Triton's `grpc_server.cc` and `common.cc` have them.

use bytes::Bytes;
use prost::Message;

use crate::error::{Code, Error};
use crate::model::{ModelSpec, TensorSpec};
use crate::protocol::grpc::message::UNREADABLE;
use crate::wire::grpc::prefix;
use crate::wire::proto::health::health_check_response::ServingStatus;
use crate::wire::proto::health::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse};
use crate::wire::proto::inference as proto;
use crate::wire::proto::inference::model_metadata_response::TensorMetadata;
use crate::wire::protobuf::{bytes_size, put_bytes_head};

/// What a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rpc {
    /// One message in, one out, answered at once by [`answer`].
    Control(Control),
    /// `ModelInfer`: one message in, one out, by way of a model.
    ModelInfer,
    /// `ServerReflectionInfo` of v1 or v1alpha: messages in, each answered by
    /// [`super::reflection::answer`].
    ServerReflectionInfo,
    /// `Watch`: one message in, then [`health`] at once and whenever it changes.
    Watch,
    /// An RPC of Triton's that is not built; its name.
    Unbuilt(&'static str),
}

/// The RPCs that are answered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// `grpc.health.v1.Health/Check`.
    HealthCheck,
    /// `grpc.health.v1.Health/List`.
    HealthList,
    /// `ModelConfig`.
    ModelConfig,
    /// `ModelMetadata`.
    ModelMetadata,
    /// `ModelReady`.
    ModelReady,
    /// `ServerLive`.
    ServerLive,
    /// `ServerMetadata`.
    ServerMetadata,
    /// `ServerReady`.
    ServerReady,
}

impl Rpc {
    /// The RPC of a path. An unknown one is refused without a text, as gRPC's own servers do.
    pub fn from_path(path: &[u8]) -> Result<Self, Error> {
        let unknown = || Error::unsupported("");
        let path = path.strip_prefix(b"/").ok_or_else(unknown)?;
        let slash = path.iter().position(|byte| *byte == b'/').ok_or_else(unknown)?;
        let (service, method) = path.split_at_checked(slash).ok_or_else(unknown)?;
        let rpc = match service {
            b"inference.GRPCInferenceService" => Self::from_method(method),
            b"grpc.health.v1.Health" => Self::from_health_method(method),
            b"grpc.reflection.v1.ServerReflection" | b"grpc.reflection.v1alpha.ServerReflection" => {
                (method == b"/ServerReflectionInfo").then_some(Self::ServerReflectionInfo)
            }
            _ => None,
        };
        rpc.ok_or_else(unknown)
    }

    fn from_method(method: &[u8]) -> Option<Self> {
        Some(match method {
            b"/ModelInfer" => Self::ModelInfer,
            b"/ServerLive" => Self::Control(Control::ServerLive),
            b"/ServerReady" => Self::Control(Control::ServerReady),
            b"/ModelReady" => Self::Control(Control::ModelReady),
            b"/ServerMetadata" => Self::Control(Control::ServerMetadata),
            b"/ModelMetadata" => Self::Control(Control::ModelMetadata),
            b"/ModelConfig" => Self::Control(Control::ModelConfig),
            b"/ModelStreamInfer" => Self::Unbuilt("ModelStreamInfer"),
            b"/ModelStatistics" => Self::Unbuilt("ModelStatistics"),
            b"/RepositoryIndex" => Self::Unbuilt("RepositoryIndex"),
            b"/RepositoryModelLoad" => Self::Unbuilt("RepositoryModelLoad"),
            b"/RepositoryModelUnload" => Self::Unbuilt("RepositoryModelUnload"),
            b"/SystemSharedMemoryStatus" => Self::Unbuilt("SystemSharedMemoryStatus"),
            b"/SystemSharedMemoryRegister" => Self::Unbuilt("SystemSharedMemoryRegister"),
            b"/SystemSharedMemoryUnregister" => Self::Unbuilt("SystemSharedMemoryUnregister"),
            b"/CudaSharedMemoryStatus" => Self::Unbuilt("CudaSharedMemoryStatus"),
            b"/CudaSharedMemoryRegister" => Self::Unbuilt("CudaSharedMemoryRegister"),
            b"/CudaSharedMemoryUnregister" => Self::Unbuilt("CudaSharedMemoryUnregister"),
            b"/TraceSetting" => Self::Unbuilt("TraceSetting"),
            b"/LogSettings" => Self::Unbuilt("LogSettings"),
            _ => return None,
        })
    }

    fn from_health_method(method: &[u8]) -> Option<Self> {
        Some(match method {
            b"/Check" => Self::Control(Control::HealthCheck),
            b"/List" => Self::Control(Control::HealthList),
            b"/Watch" => Self::Watch,
            _ => return None,
        })
    }
}

/// The refusal of an RPC that is not built.
pub fn unbuilt(name: &str) -> Error {
    Error::unsupported(format!("{name} is not built into this server"))
}

/// What the answers are made of.
pub trait Facts {
    /// The server's name.
    fn name(&self) -> &str;

    /// The server's version.
    fn version(&self) -> &str;

    /// The extensions of the protocol that it has.
    fn extensions(&self) -> &[&str];

    /// Whether it is up.
    fn is_live(&self) -> bool;

    /// Whether it can serve.
    fn is_ready(&self) -> bool;

    /// A model that is ready, in a version or in any; else a failure with the text that a client
    /// of any protocol gets.
    fn model(&self, name: &str, version: Option<u64>) -> Result<ModelFacts<'_>, Error>;
}

/// What there is to say about a model.
#[derive(Clone, Debug)]
pub struct ModelFacts<'a> {
    /// Its checked configuration.
    pub spec: &'a ModelSpec,
    /// Its ready versions, or the one that was asked for.
    pub versions: Vec<u64>,
}

/// Answers one message with one, framed.
pub fn answer(control: Control, message: &[u8], facts: &impl Facts) -> Result<Bytes, Error> {
    match control {
        Control::HealthCheck => read::<HealthCheckRequest>(message).and_then(|_| health(facts.is_ready())),
        Control::HealthList => read::<HealthListRequest>(message).and_then(|_| health_list(facts)),
        Control::ModelConfig => model_config(&read(message)?, facts),
        Control::ModelMetadata => model_metadata(&read(message)?, facts),
        Control::ModelReady => model_ready(&read(message)?, facts),
        Control::ServerLive => {
            read::<proto::ServerLiveRequest>(message)?;
            framed(&proto::ServerLiveResponse { live: facts.is_live() })
        }
        Control::ServerMetadata => {
            read::<proto::ServerMetadataRequest>(message)?;
            server_metadata(facts)
        }
        Control::ServerReady => {
            read::<proto::ServerReadyRequest>(message)?;
            framed(&proto::ServerReadyResponse { ready: facts.is_ready() })
        }
    }
}

/// The framed answer of `Check` and `Watch`, to any service name, as Triton has it: probes that
/// were written for it name services freely.
pub fn health(is_ready: bool) -> Result<Bytes, Error> {
    framed(&health_response(is_ready))
}

/// The version a request asks for: `None` for the one the server chooses. Triton reads it with
/// `stol`, so that an unreadable one is told in its words; trailing letters are refused as well.
pub fn version(text: &str) -> Result<Option<u64>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<i64>() {
        Ok(version) if is_number => u64::try_from(version).map(Some).map_err(|_| {
            Error::invalid(format!(
                "invalid model version specified '{text}' , version should be an integral value > 0"
            ))
        }),
        _ => Err(Error::invalid(format!(
            "failed to get model version from specified version string '{text}' (details: stol), version should be \
             an integral value > 0"
        ))),
    }
}

/// A message, framed.
pub fn framed(message: &impl Message) -> Result<Bytes, Error> {
    let size = message.encoded_len();
    let mut out = frame(size)?;
    message.encode_raw(&mut out);
    Ok(out.into())
}

/// Reads a message that has no reader of its own.
pub fn read<M: Message + Default>(message: &[u8]) -> Result<M, Error> {
    M::decode(message).map_err(|_| Error::new(Code::Internal, UNREADABLE))
}

/// The beginning of a framed message of so many bytes.
fn frame(size: usize) -> Result<Vec<u8>, Error> {
    let prefix = prefix(size).ok_or_else(|| Error::internal("a response does not fit into a gRPC message"))?;
    let mut out = Vec::with_capacity(size.saturating_add(prefix.len()));
    out.extend_from_slice(&prefix);
    Ok(out)
}

const fn health_response(is_ready: bool) -> HealthCheckResponse {
    let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status as i32 }
}

/// The whole server, which has no name, and its service.
fn health_list(facts: &impl Facts) -> Result<Bytes, Error> {
    let names = ["", "inference.GRPCInferenceService"];
    let statuses = names.map(|name| (name.to_owned(), health_response(facts.is_ready())));
    framed(&HealthListResponse { statuses: statuses.into() })
}

fn server_metadata(facts: &impl Facts) -> Result<Bytes, Error> {
    framed(&proto::ServerMetadataResponse {
        name: facts.name().to_owned(),
        version: facts.version().to_owned(),
        extensions: facts.extensions().iter().map(|name| (*name).to_owned()).collect(),
    })
}

/// A model that is unknown, or not ready, is not ready: no failure (Triton 2.51 and `tritonclient`).
fn model_ready(request: &proto::ModelReadyRequest, facts: &impl Facts) -> Result<Bytes, Error> {
    let version = version(&request.version)?;
    framed(&proto::ModelReadyResponse { ready: facts.model(&request.name, version).is_ok() })
}

fn model_metadata(request: &proto::ModelMetadataRequest, facts: &impl Facts) -> Result<Bytes, Error> {
    let model = facts.model(&request.name, version(&request.version)?)?;
    framed(&proto::ModelMetadataResponse {
        name: model.spec.name.clone(),
        versions: model.versions.iter().map(u64::to_string).collect(),
        platform: model.spec.platform.clone(),
        inputs: model.spec.inputs.iter().map(tensor_metadata).collect(),
        outputs: model.spec.outputs.iter().map(tensor_metadata).collect(),
    })
}

fn tensor_metadata(tensor: &TensorSpec) -> TensorMetadata {
    TensorMetadata {
        name: tensor.name.clone(),
        datatype: tensor.datatype.name().to_owned(),
        shape: tensor.shape.to_vec(),
    }
}

/// The configuration is kept encoded: it becomes the response's one field as it is.
fn model_config(request: &proto::ModelConfigRequest, facts: &impl Facts) -> Result<Bytes, Error> {
    const CONFIG: u32 = 1;
    let config = &facts.model(&request.name, version(&request.version)?)?.spec.config_message;
    let mut out = frame(bytes_size(CONFIG, config.len()))?;
    put_bytes_head(CONFIG, config.len(), &mut out);
    out.extend_from_slice(config);
    Ok(out.into())
}
