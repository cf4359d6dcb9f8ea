//! The details of a request beside its tensors. Engines ignore them; Python models see all of them.

use std::sync::Arc;
use std::time::Duration;

use crate::gpu::DeviceTensors;
use base::time::Instant;
use model::CorrelationId;
use model::parameters::Parameters;
use trace::ActiveTrace;

/// `TRITONSERVER_REQUEST_FLAG_SEQUENCE_START`.
pub const FLAG_SEQUENCE_START: u32 = 1;
/// `TRITONSERVER_REQUEST_FLAG_SEQUENCE_END`.
pub const FLAG_SEQUENCE_END: u32 = 2;

/// The details of one request, shared by all code that handles it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestDetails {
    /// The client's request id; empty if the client gave none.
    pub id: String,
    /// Its sequence.
    pub correlation_id: Option<CorrelationId>,
    /// [`FLAG_SEQUENCE_START`] and [`FLAG_SEQUENCE_END`].
    pub flags: u32,
    /// The parameter `timeout`; zero if absent.
    pub timeout: Duration,
    /// The parameter `priority`; 0 if absent.
    pub priority: u64,
    /// The client's own parameters.
    pub parameters: Parameters,
    /// The context of its trace (W3C trace context as JSON), if it is traced.
    pub trace: Option<String>,
    /// Its trace, if it is traced: calls of its model become a part of that.
    pub active_trace: Option<Arc<ActiveTrace>>,
    /// The client's deadline: a later answer is useless.
    pub deadline: Option<Instant>,
    /// The calls between models that led to it; empty for a request of a client.
    pub chain: CallChain,
    /// It is a step of an ensemble: its outputs may be the inputs of another engine.
    pub is_step: bool,
    /// Its tensors that lie on a device; only for models of which all instances are there.
    pub on_device: Option<Arc<DeviceTensors>>,
}

impl RequestDetails {
    /// The details of the same request when it runs again (iterative sequences): no longer the
    /// first of its sequence.
    #[inline]
    pub fn rescheduled(self: Arc<Self>) -> Arc<Self> {
        let flags = self.flags & !FLAG_SEQUENCE_START;
        if flags == self.flags { self } else { Arc::new(Self { flags, ..Arc::unwrap_or_clone(self) }) }
    }
}

/// The instances that wait for a request, from the first model to the last: each called the next (BLS).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallChain(pub Option<Arc<CallLink>>);

/// One caller of a chain.
#[derive(Debug, PartialEq, Eq)]
pub struct CallLink {
    /// The model and version of the instance that called.
    pub model: Arc<str>,
    /// Its version.
    pub version: u64,
    /// The name of the instance.
    pub instance: Arc<str>,
    /// The callers that wait for that instance in turn.
    pub before: CallChain,
}

impl CallChain {
    /// The number of calls.
    #[inline]
    pub fn depth(&self) -> usize {
        self.links().count()
    }

    /// The callers, the latest first.
    pub fn links(&self) -> impl Iterator<Item = &CallLink> {
        std::iter::successors(self.0.as_deref(), |link| link.before.0.as_deref())
    }

    /// The chain with one more caller.
    #[inline]
    pub fn with(self, model: Arc<str>, version: u64, instance: Arc<str>) -> Self {
        Self(Some(Arc::new(CallLink { model, version, instance, before: self })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_counts_its_callers_the_latest_first() {
        let chain = CallChain::default().with("a".into(), 1, "a_0_0".into()).with("b".into(), 2, "b_0_1".into());
        let callers: Vec<_> = chain.links().map(|link| (&*link.model, &*link.instance)).collect();
        assert_eq!((chain.depth(), callers), (2, vec![("b", "b_0_1"), ("a", "a_0_0")]));
        assert_eq!(CallChain::default().depth(), 0);
    }

    #[test]
    fn a_request_that_runs_again_is_not_the_first_of_its_sequence_any_more() {
        let said = |flags| Arc::new(RequestDetails { id: "7".to_owned(), flags, ..RequestDetails::default() });
        assert_eq!(said(FLAG_SEQUENCE_START | FLAG_SEQUENCE_END).rescheduled(), said(FLAG_SEQUENCE_END));
        let plain = said(0);
        assert!(Arc::ptr_eq(&Arc::clone(&plain).rescheduled(), &plain), "not copied");
    }
}
