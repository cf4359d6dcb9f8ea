//! A request as its backend sees it (`TRITONBACKEND_Request`), with its inputs. The backend owns it from its run until it
//! releases it, on any thread; the inputs are the tensors of the server, without a copy.

#![expect(clippy::disallowed_types, reason = "the states of a request, which its backend makes one by one")]

use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use smallvec::SmallVec;

use crate::triton::answers::HostedAnswers;
use crate::triton::error::c_text;
use crate::triton::memory::BufferAttributesObject;
use crate::triton::model_object::{HostedTensors, LibraryModel};
use crate::triton::object::{Owned, hosted_object};
use crate::triton::parameter::{ParameterObject, of_parameters};
use crate::triton::state::StateObject;
use crate::triton::trace::TraceObject;
use backend::details::RequestDetails;
use backend::{OutputNeed, OutputNeeds};
use base::error::Error;
use base::tensor::Tensor;
use model::CorrelationId;

/// A `TRITONBACKEND_Request`.
pub(super) struct RequestObject {
    /// Keeps the model until its last request was released.
    _model: Arc<LibraryModel>,
    pub(super) tensors: Arc<HostedTensors>,
    pub(super) answers: Arc<HostedAnswers>,
    pub(super) inputs: SmallVec<[Owned<InputObject>; 4]>,
    pub(super) details: Option<Arc<RequestDetails>>,
    needs: OutputNeeds,
    texts: OnceLock<Box<RequestTexts>>,
    states: Mutex<Vec<Owned<StateObject>>>,
}

hosted_object!(RequestObject, "request", 10);

/// A `TRITONBACKEND_Input`.
pub(super) struct InputObject {
    tensors: Arc<HostedTensors>,
    /// Its index in the model's inputs.
    index: usize,
    pub(super) tensor: Tensor,
    attributes: OnceLock<Owned<BufferAttributesObject>>,
}

hosted_object!(InputObject, "input", 11);

/// The texts of a request in the form of C. Most backends do not ask.
struct RequestTexts {
    id: CString,
    correlation_id: Option<CString>,
    parameters: Vec<Owned<ParameterObject>>,
    trace: Option<Owned<TraceObject>>,
}

impl RequestObject {
    /// A request with its inputs, in the order of the model's; those that were left out are not among them.
    pub(super) fn new(
        model: &Arc<LibraryModel>,
        answers: Arc<HostedAnswers>,
        inputs: Vec<Tensor>,
        details: Option<Arc<RequestDetails>>,
        needs: OutputNeeds,
    ) -> Self {
        let tensors = Arc::clone(answers.tensors());
        let given = inputs.into_iter().enumerate().filter(|(_, tensor)| tensor.is_given());
        let input = |(index, tensor)| {
            Owned::new(InputObject { tensors: Arc::clone(&tensors), index, tensor, attributes: OnceLock::new() })
        };
        Self {
            inputs: given.map(input).collect(),
            _model: Arc::clone(model),
            tensors,
            answers,
            details,
            needs,
            texts: OnceLock::new(),
            states: Mutex::default(),
        }
    }

    /// An input by its index among those that were given.
    ///
    /// # Errors
    /// `InvalidArgument` beyond the last.
    pub(super) fn input(&self, index: u32) -> Result<&Owned<InputObject>, Error> {
        self.inputs.get(index as usize).ok_or_else(|| beyond(index, self.inputs.len(), "inputs"))
    }

    /// The outputs that the client needs, as indexes of the model's.
    pub(super) fn outputs(&self) -> impl Iterator<Item = usize> {
        (0..self.tensors.outputs_asked).filter(|index| self.needs.of(*index) != OutputNeed::Nothing)
    }

    pub(super) fn id(&self) -> &CStr {
        &self.texts().id
    }

    pub(super) fn correlation_text(&self) -> Option<&CStr> {
        self.texts().correlation_id.as_deref()
    }

    pub(super) fn parameters(&self) -> &[Owned<ParameterObject>] {
        &self.texts().parameters
    }

    pub(super) fn trace(&self) -> Option<&Owned<TraceObject>> {
        self.texts().trace.as_ref()
    }

    /// The number of its sequence; 0 if it is in none, and `None` if a text names the sequence.
    pub(super) fn correlation_number(&self) -> Option<u64> {
        match self.details.as_ref().and_then(|details| details.correlation_id.as_ref()) {
            None => Some(0),
            Some(CorrelationId::Number(number) | CorrelationId::Own(number)) => Some(*number),
            Some(CorrelationId::Text(_)) => None,
        }
    }

    /// Keeps a state until the request is released.
    pub(super) fn keep_state(&self, state: Owned<StateObject>) {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).push(state);
    }

    fn texts(&self) -> &RequestTexts {
        self.texts.get_or_init(|| Box::new(RequestTexts::of(self.details.as_deref())))
    }
}

impl RequestTexts {
    fn of(details: Option<&RequestDetails>) -> Self {
        let Some(details) = details else {
            return Self { id: CString::default(), correlation_id: None, parameters: Vec::new(), trace: None };
        };
        let correlation_id = match &details.correlation_id {
            Some(CorrelationId::Text(text)) => Some(c_text(text)),
            _ => None,
        };
        let is_traced = details.trace.is_some() || details.active_trace.is_some();
        Self {
            id: c_text(&details.id),
            correlation_id,
            parameters: of_parameters(&details.parameters),
            trace: is_traced.then(|| Owned::new(TraceObject::of(details))),
        }
    }
}

impl InputObject {
    pub(super) fn name(&self) -> &CStr {
        self.tensors.inputs.get(self.index).map_or(c"", |input| &input.name)
    }

    /// The attributes of its buffer.
    pub(super) fn attributes(&self) -> &Owned<BufferAttributesObject> {
        self.attributes.get_or_init(|| Owned::new(BufferAttributesObject::of_host(self.tensor.contents.len())))
    }
}

/// Triton's refusal of an index.
pub(super) fn beyond(index: u32, count: usize, what: &str) -> Error {
    Error::invalid(format!("out of bounds index {index}: request has {count} {what}"))
}
