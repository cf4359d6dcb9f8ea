//! `TRITONSERVER_Server*`: the requests of a backend to the server.

use bytes::Bytes;

use crate::triton::abi::functions;
use crate::triton::inference_request::InferenceRequestObject;
use crate::triton::object::{Handle, Items, Out, Text};
use crate::triton::parameter::{ParameterContents, ParameterObject};
use crate::triton::server_object::{ServerObject, version_of};
use crate::triton::trace::TraceObject;
use backend::gateway::OrderKind;
use base::error::Error;
use base::limits::ORDER_PARAMETERS_MAX;

/// `TRITONSERVER_TXN_ONE_TO_ONE` and `TRITONSERVER_TXN_DECOUPLED`.
const TRANSACTIONS: [u32; 2] = [1, 2];

functions! {
    // A backend runs inside it.
    TRITONSERVER_ServerIsLive(server: Handle<ServerObject>, is_live: Out<bool>) {
        server.get()?;
        is_live.set(true)
    }

    TRITONSERVER_ServerModelIsReady(
        server: Handle<ServerObject>, model: Text, version: i64, is_ready: Out<bool>
    ) {
        let (server, model) = (server.get()?, model.get("name of the model")?);
        is_ready.set(server.order(OrderKind::Ready(version_of(version)?), &model)?)
    }

    TRITONSERVER_ServerModelTransactionProperties(
        server: Handle<ServerObject>, model: Text, version: i64, flags: Out<u32>, reserved: Out<usize>
    ) {
        let (server, model) = (server.get()?, model.get("name of the model")?);
        let is_decoupled = server.order(OrderKind::Decoupled(version_of(version)?), &model)?;
        reserved.set_if_asked(0);
        let [one_to_one, decoupled] = TRANSACTIONS;
        flags.set(if is_decoupled { decoupled } else { one_to_one })
    }

    TRITONSERVER_ServerLoadModel(server: Handle<ServerObject>, model: Text) {
        let (server, model) = (server.get()?, model.get("name of the model")?);
        server.order(OrderKind::Load { config: None, files: Vec::new() }, &model).map(drop)
    }

    TRITONSERVER_ServerLoadModelWithParameters(
        server: Handle<ServerObject>, model: Text, parameters: Items<Handle<ParameterObject>>, count: u64
    ) {
        let (server, model) = (server.get()?, model.get("name of the model")?);
        if count > ORDER_PARAMETERS_MAX as u64 {
            return Err(Error::invalid(format!("a load has at most {ORDER_PARAMETERS_MAX} parameters")));
        }
        let (mut config, mut files) = (None, Vec::new());
        for parameter in parameters.get(count, "parameters")? {
            let parameter = parameter.get()?;
            let name = parameter.name.to_string_lossy();
            match &parameter.value {
                ParameterContents::Text(text) if name == "config" => {
                    config = Some(text.to_string_lossy().into_owned());
                }
                ParameterContents::Bytes(bytes) if name.starts_with("file:") => {
                    files.push((name.into_owned(), Bytes::copy_from_slice(bytes)));
                }
                _ => return Err(Error::invalid(format!("unrecognized load parameter '{name}'."))),
            }
        }
        server.order(OrderKind::Load { config, files }, &model).map(drop)
    }

    TRITONSERVER_ServerUnloadModel(server: Handle<ServerObject>, model: Text) {
        let (server, model) = (server.get()?, model.get("name of the model")?);
        server.order(OrderKind::Unload { with_dependents: false }, &model).map(drop)
    }

    TRITONSERVER_ServerUnloadModelAndDependents(server: Handle<ServerObject>, model: Text) {
        let (server, model) = (server.get()?, model.get("name of the model")?);
        server.order(OrderKind::Unload { with_dependents: true }, &model).map(drop)
    }

    TRITONSERVER_ServerInferAsync(
        server: Handle<ServerObject>, request: Handle<InferenceRequestObject>, trace: Handle<TraceObject>
    ) {
        let server = server.get()?;
        let trace = trace.get_if_given()?;
        request.get()?.infer(request, server, trace)?;
        Ok(())
    }
}
