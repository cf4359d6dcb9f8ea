//! The interface by which a model calls the server: inference on other models (BLS), and model
//! control. A backend gets a [`Gateway`] when it loads a model, and never sees a shard or the
//! control thread. All methods return at once; replies come later, from any thread. Each call gets
//! exactly one final reply, even if it is refused or cancelled or the server ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;

use atomic_waker::AtomicWaker;
use bytes::Bytes;

use crate::details::RequestDetails;
use base::error::Error;
use base::limits::NESTED_RESPONSES_UNREAD_MAX;
use base::tensor::Tensor;
use model::parameters::Parameters;

/// The services of the server for a model.
pub trait Gateway: Send + Sync {
    /// Runs a request on a model. A refusal comes as a reply too.
    fn infer(&self, call: NestedCall);

    /// Loads or unloads a model, or asks if it is ready.
    fn control(&self, order: NestedOrder);
}

/// One request from a model to another.
pub struct NestedCall {
    /// The name of the model.
    pub model: String,
    /// Its version; `None` for any.
    pub version: Option<u64>,
    /// The inputs, by name, not yet checked against the model.
    pub inputs: Vec<(String, Tensor)>,
    /// The requested outputs, by name; empty for all.
    pub outputs: Vec<String>,
    /// True if the caller takes any number of responses. Otherwise a decoupled model refuses.
    pub is_decoupled: bool,
    /// True if inputs without rows give outputs without rows, and the model does not run. Otherwise it refuses them.
    pub allows_no_rows: bool,
    /// Everything else, with the chain of callers and the time left.
    pub details: RequestDetails,
    /// Takes the responses.
    pub replies: Arc<dyn ReplySink>,
    /// The state that both sides share.
    pub state: Arc<CallState>,
}

/// The state that caller and server share while a call runs: the caller cancels and reads, the
/// server looks.
#[derive(Debug, Default)]
pub struct CallState {
    is_cancelled: AtomicBool,
    unread: AtomicUsize,
    /// The server's task for the call.
    waker: AtomicWaker,
}

impl CallState {
    /// The caller needs no further responses. It still gets one that is final.
    #[inline]
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Returns true if the caller needs no further responses.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// The server hands a response to the caller that is not the last.
    #[inline]
    pub fn handle_sent(&self) {
        self.unread.fetch_add(1, Ordering::Relaxed);
    }

    /// The caller has consumed a response.
    pub fn handle_read(&self) {
        let before = self.unread.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |unread| unread.checked_sub(1));
        // Only a model that was asked to wait has to be told.
        if before == Ok(NESTED_RESPONSES_UNREAD_MAX) {
            self.waker.wake();
        }
    }

    /// Returns true if the caller has consumed enough for another response.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.unread() < NESTED_RESPONSES_UNREAD_MAX
    }

    /// Responses that the caller has not consumed.
    #[inline]
    pub fn unread(&self) -> usize {
        self.unread.load(Ordering::Acquire)
    }

    /// Sets the waker to call when the call is cancelled or has room again. Earlier events wake no
    /// task: check afterwards.
    #[inline]
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }
}

/// One response to a call.
pub struct NestedReply {
    /// The outputs by name, or the error. Empty outputs with `is_final` are a bare end.
    pub outputs: Result<Vec<(String, Tensor)>, Error>,
    /// The parameters of the response.
    pub parameters: Parameters,
    /// True if it is the last.
    pub is_final: bool,
}

/// Takes the replies of a call, from any thread: any number, and then one that is final. Never blocks.
pub trait ReplySink: Send + Sync {
    /// Takes one reply.
    fn push(&self, reply: NestedReply);
}

/// An order from a model to the server.
pub struct NestedOrder {
    /// The kind of the order.
    pub kind: OrderKind,
    /// The model's name.
    pub model: String,
    /// The chain of callers of the instance, whose models must not be touched.
    pub details: RequestDetails,
    /// Called with the outcome; the answer to a question, or true for an order that was carried
    /// out.
    pub reply: Box<dyn FnOnce(Result<bool, Error>) + Send>,
}

/// An order's kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// Ask if a version is decoupled; `None` for any. One that does not serve is an error.
    Decoupled(Option<u64>),
    /// Load or reload, with a configuration and files that replace those of the repository.
    Load {
        /// JSON; `None` to take the repository's.
        config: Option<String>,
        /// Contents by path.
        files: Vec<(String, Bytes)>,
    },
    /// Ask if a version is ready; `None` for any.
    Ready(Option<u64>),
    /// Unload.
    Unload {
        /// Also the models that only this one needs.
        with_dependents: bool,
    },
}
