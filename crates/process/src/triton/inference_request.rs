//! A request that a backend makes of the server (`TRITONSERVER_InferenceRequest`, BLS), and the way
//! back of its responses: as tensors in memory that the backend's own allocator gives, on a thread
//! for callbacks.

#![expect(clippy::disallowed_types, reason = "a request that its backend fills, one thread at a time")]

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::triton::callback::{AllocatorCalls, ReleaseCallback, ResponseCallback};
use crate::triton::caller::HostedCaller;
use crate::triton::error::c_text;
use crate::triton::inference_response::{AnsweredCall, InferenceResponseObject};
use crate::triton::memory::copy_bytes;
use crate::triton::object::{Handle, Owned, hosted_object};
use crate::triton::server_object::{ServerObject, version_of};
use crate::triton::services::{self, log_error};
use crate::triton::trace::TraceObject;
use crate::triton::types::{MEMORY_GPU, RELEASE_ALL};
use backend::details::RequestDetails;
use backend::gateway::{CallState, NestedCall, NestedReply, ReplySink};
use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor};
use model::CorrelationId;
use model::parameters::{ParameterValue, Parameters};

/// A `TRITONSERVER_InferenceRequest`.
pub(super) struct InferenceRequestObject {
    model: String,
    version: Option<u64>,
    /// True while the server has it: nothing of it may change.
    is_sent: AtomicBool,
    fields: Mutex<RequestFields>,
    call: Mutex<Option<Arc<CallState>>>,
}

hosted_object!(InferenceRequestObject, "inference request", 22);

/// The fields that a backend sets.
#[derive(Default)]
pub(super) struct RequestFields {
    pub(super) id: CString,
    pub(super) flags: u32,
    pub(super) correlation_id: Option<CorrelationId>,
    /// The text of the correlation id, if it is one.
    pub(super) correlation_text: CString,
    pub(super) priority: u64,
    pub(super) timeout_us: u64,
    pub(super) inputs: Vec<RequestedInput>,
    pub(super) outputs: Vec<String>,
    pub(super) parameters: Parameters,
    pub(super) release: Option<ReleaseCallback>,
    pub(super) response: Option<ResponseCallback>,
}

/// An input of it.
pub(super) struct RequestedInput {
    pub(super) name: String,
    pub(super) datatype: Datatype,
    pub(super) shape: Shape,
    /// Address and size of its parts, which the backend lends until the request is released.
    parts: Vec<(usize, usize)>,
}

impl InferenceRequestObject {
    /// A request for a model and a version, -1 for any.
    ///
    /// # Errors
    /// `InvalidArgument` for a number that is not a version.
    pub(super) fn new(model: &str, version: i64) -> Result<Self, Error> {
        Ok(Self {
            model: model.to_owned(),
            version: version_of(version)?,
            is_sent: AtomicBool::new(false),
            fields: Mutex::default(),
            call: Mutex::new(None),
        })
    }

    /// Changes it.
    ///
    /// # Errors
    /// `InvalidArgument` if the server has it.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut RequestFields) -> T) -> Result<T, Error> {
        if self.is_sent.load(Ordering::Acquire) {
            return Err(Error::invalid("the inference request is on its way and cannot be changed"));
        }
        Ok(change(&mut self.lock()))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RequestFields> {
        self.fields.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an input.
    ///
    /// # Errors
    /// `InvalidArgument` if it exists already, in Triton's words.
    pub(super) fn add_input(&self, name: &str, datatype: Datatype, shape: Shape) -> Result<(), Error> {
        self.change(|fields| {
            if fields.inputs.iter().any(|input| input.name == name) {
                return Err(Error::invalid(format!("input '{name}' already exists in request")));
            }
            fields.inputs.push(RequestedInput { name: name.to_owned(), datatype, shape, parts: Vec::new() });
            Ok(())
        })?
    }

    /// Appends a part of an input's contents.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown input, `Unsupported` for memory of GPUs.
    pub(super) fn append(&self, name: &str, base: *const c_void, size: usize, memory_type: u32) -> Result<(), Error> {
        if memory_type >= MEMORY_GPU {
            return Err(Error::unsupported(
                "this host takes inputs of calls from the memory of the CPU: copy them there",
            ));
        }
        self.change(|fields| {
            let input = fields.inputs.iter_mut().find(|input| input.name == name).ok_or_else(|| no_input(name))?;
            input.parts.push((base as usize, size));
            Ok(())
        })?
    }

    /// Takes the contents of an input away.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub(super) fn remove_contents(&self, name: &str) -> Result<(), Error> {
        self.change(|fields| {
            let input = fields.inputs.iter_mut().find(|input| input.name == name).ok_or_else(|| no_input(name))?;
            input.parts.clear();
            Ok(())
        })?
    }

    /// Sends it. From then on the server owns it, until it is released by the backend's callback.
    ///
    /// # Errors
    /// `InvalidArgument` if a callback or contents are missing, or it was sent already: the backend
    /// keeps the request.
    pub(super) fn infer(
        &self,
        own: Handle<Self>,
        server: &ServerObject,
        trace: Option<&TraceObject>,
    ) -> Result<(), Error> {
        let services = services::get()?;
        if self.is_sent.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid("the inference request is on its way already"));
        }
        let prepared = self.prepare(own, server, trace);
        let call = prepared.inspect_err(|_| self.is_sent.store(false, Ordering::Release))?;
        *self.call.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&call.state));
        services.gateway.infer(call);
        Ok(())
    }

    fn prepare(
        &self,
        own: Handle<Self>,
        server: &ServerObject,
        trace: Option<&TraceObject>,
    ) -> Result<NestedCall, Error> {
        let fields = self.lock();
        let lacks = |what: &str| Error::invalid(format!("the inference request has no {what} callback"));
        let release = fields.release.ok_or_else(|| lacks("release"))?;
        let response = fields.response.ok_or_else(|| lacks("response"))?;
        // Looked up while the backend is in the call: the allocator is its own.
        let allocator = response.allocator()?;
        let inputs = fields.inputs.iter().map(RequestedInput::read).collect::<Result<_, Error>>()?;
        let state = Arc::new(CallState::default());
        let details = RequestDetails {
            id: fields.id.to_string_lossy().into_owned(),
            correlation_id: fields.correlation_id.clone(),
            flags: fields.flags,
            timeout: Duration::from_micros(fields.timeout_us),
            priority: fields.priority,
            parameters: fields.parameters.clone(),
            trace: trace.map(|trace| trace.context.to_string_lossy().into_owned()).filter(|text| !text.is_empty()),
            active_trace: trace.and_then(|trace| trace.active.clone()),
            chain: server.caller.chain(),
            ..RequestDetails::default()
        };
        let replies = Arc::new(HostedReplies {
            caller: Arc::clone(&server.caller),
            request: own.address(),
            model: c_text(&self.model),
            version: self.version,
            id: fields.id.clone(),
            state: Arc::clone(&state),
            response,
            allocator,
            release,
        });
        Ok(NestedCall {
            model: self.model.clone(),
            version: self.version,
            inputs,
            outputs: fields.outputs.clone(),
            // The callback takes any number of responses.
            is_decoupled: true,
            allows_no_rows: false,
            details,
            replies: Arc::new(HostedReplySink(replies)),
            state,
        })
    }

    /// The backend needs no further responses.
    pub(super) fn cancel(&self) {
        if let Some(call) = &*self.call.lock().unwrap_or_else(PoisonError::into_inner) {
            call.cancel();
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.call.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|call| call.is_cancelled())
    }

    /// Returns true while the server has it, so that it must not be deleted.
    pub(super) fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Acquire)
    }
}

impl RequestedInput {
    /// Its name and its tensor. Copied: the lender may write to the memory once the call is over, and the tensor may
    /// live on in an answer.
    fn read(&self) -> Result<(String, Tensor), Error> {
        let mut contents = Vec::with_capacity(self.parts.iter().map(|(_, size)| *size).fold(0, usize::saturating_add));
        for (address, size) in &self.parts {
            contents.append(&mut copy_bytes(*address as *const c_void, *size)?);
        }
        let (datatype, shape) = (self.datatype, self.shape.clone());
        Ok((self.name.clone(), Tensor { datatype, shape, contents: Bytes::from(contents) }))
    }
}

impl RequestFields {
    pub(super) fn set_parameter(&mut self, name: &str, value: ParameterValue) {
        self.parameters.set(name, value);
    }
}

fn no_input(name: &str) -> Error {
    Error::invalid(format!("input '{name}' does not exist in request"))
}

/// Takes the responses of one call to the thread of callbacks.
struct HostedReplies {
    caller: Arc<HostedCaller>,
    /// The address of the request, which the server owns until it is released.
    request: usize,
    model: CString,
    version: Option<u64>,
    id: CString,
    state: Arc<CallState>,
    response: ResponseCallback,
    allocator: AllocatorCalls,
    release: ReleaseCallback,
}

impl HostedReplies {
    fn deliver(&self, reply: NestedReply) {
        let NestedReply { outputs, parameters, is_final } = reply;
        // The end of a decoupled model's responses is not a response.
        let is_bare_end = is_final && outputs.as_ref().is_ok_and(Vec::is_empty);
        let response = if is_bare_end {
            Handle::null()
        } else {
            let call = AnsweredCall { model: self.model.clone(), version: self.version, id: self.id.clone() };
            Owned::new(InferenceResponseObject::new(call, &self.allocator, outputs, &parameters)).into_handle()
        };
        self.response.call(response.any(), u32::from(is_final));
        if is_final {
            self.hand_back();
        } else {
            self.state.handle_read();
        }
    }

    /// Gives the request back to the backend.
    fn hand_back(&self) {
        let handle = Handle::<InferenceRequestObject>::of_address(self.request);
        match handle.get() {
            Ok(request) => {
                request.is_sent.store(false, Ordering::Release);
                request.call.lock().unwrap_or_else(PoisonError::into_inner).take();
                self.release.call(handle.any(), RELEASE_ALL);
            }
            Err(_) => log_error("a backend deleted an inference request that was on its way"),
        }
    }
}

/// The sink that the server has.
struct HostedReplySink(Arc<HostedReplies>);

impl ReplySink for HostedReplySink {
    fn push(&self, reply: NestedReply) {
        let replies = Arc::clone(&self.0);
        self.0.caller.call_back(Box::new(move || replies.deliver(reply)));
    }
}
