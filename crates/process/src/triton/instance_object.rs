//! An instance as its backend sees it (`TRITONBACKEND_ModelInstance`).

#![expect(
    clippy::disallowed_types,
    reason = "whom to wake, set when an instance is made; the batch, set once for each"
)]

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use crate::execution::{HostedExecution, RecentExecutions};
use crate::triton::error::c_text;
use crate::triton::message::MessageObject;
use crate::triton::model_object::LibraryModel;
use crate::triton::object::{Handle, Owned, hosted_object};
use crate::triton::services::{FinalizeMark, log_error};
use base::error::Error;
use model::{InstanceGroup, InstanceKind, InstanceSeat};

/// A `TRITONBACKEND_ModelInstance`.
pub(super) struct InstanceObject {
    pub(super) model: Arc<LibraryModel>,
    pub(super) name: CString,
    /// `TRITONSERVER_InstanceGroupKind`.
    pub(super) kind: u32,
    pub(super) device: i32,
    pub(super) host_policy: Owned<MessageObject>,
    pub(super) is_passive: bool,
    pub(super) profiles: Vec<CString>,
    pub(super) state: AtomicPtr<c_void>,
    executions: Mutex<RecentExecutions>,
}

hosted_object!(InstanceObject, "model instance", 9);

impl InstanceObject {
    /// The batch that the next report is about.
    pub(super) fn execution_to_report(&self) -> Option<Arc<HostedExecution>> {
        self.executions.lock().unwrap_or_else(PoisonError::into_inner).to_report()
    }
}

/// The place of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstancePlace {
    /// Its name.
    pub name: String,
    /// The kind of its group.
    pub kind: InstanceKind,
    /// Its GPU.
    pub gpu: Option<u32>,
    /// The name of its host policy.
    pub host_policy: String,
    /// True if it gets no requests.
    pub is_passive: bool,
    /// Its optimization profiles.
    pub profiles: Vec<String>,
}

impl InstancePlace {
    /// The places of a group's instances.
    pub fn of_group(group: &InstanceGroup) -> impl Iterator<Item = Self> {
        group.seats().map(|seat| Self::of_seat(&seat))
    }

    /// The place of one instance.
    pub fn of_seat(InstanceSeat { name, group, gpu }: &InstanceSeat) -> Self {
        Self {
            name: name.clone(),
            kind: group.kind,
            gpu: *gpu,
            host_policy: group.host_policy.clone(),
            is_passive: group.is_passive,
            profiles: group.profiles.clone(),
        }
    }
}

/// An instance that we own. Dropped, it is finalized.
pub(super) struct HostedCopy {
    object: Owned<InstanceObject>,
    pub(super) shared: Arc<InstanceShared>,
    pub(super) name: Arc<str>,
}

/// The state that an instance shares with its requests, which any thread answers.
#[derive(Default)]
pub(super) struct InstanceShared {
    /// Requests without their last answer.
    open: AtomicUsize,
    /// The worker of the instance. Woken any number of times, so not taken by the first.
    waker: Mutex<Option<Waker>>,
}

/// Counts a request as open while it lives.
pub(super) struct OpenPlace(Arc<InstanceShared>);

impl InstanceShared {
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    pub(super) fn set_waker(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
    }

    pub(super) fn begin(self: &Arc<Self>) -> OpenPlace {
        self.open.fetch_add(1, Ordering::AcqRel);
        OpenPlace(Arc::clone(self))
    }
}

impl Drop for OpenPlace {
    fn drop(&mut self) {
        // The worker looks at the count when its run ends; an answer from another thread has to
        // report the last one to it.
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 && !backend::is_answering() {
            self.0.wake();
        }
    }
}

impl HostedCopy {
    /// Has the backend initialize an instance. As in Triton one that fails is finalized too.
    ///
    /// # Errors
    /// The backend's error.
    pub(super) fn new(model: &Arc<LibraryModel>, place: &InstancePlace) -> Result<Self, Error> {
        let object = Owned::new(InstanceObject {
            model: Arc::clone(model),
            name: c_text(&place.name),
            kind: match place.kind {
                InstanceKind::Cpu => 1,
                InstanceKind::Gpu => 2,
                InstanceKind::Model => 3,
            },
            device: place.gpu.and_then(|gpu| i32::try_from(gpu).ok()).unwrap_or(0),
            host_policy: Owned::new(MessageObject::new(model.backend().policy_json(&place.host_policy))),
            is_passive: place.is_passive,
            profiles: place.profiles.iter().map(|profile| c_text(profile)).collect(),
            state: AtomicPtr::new(null_mut()),
            executions: Mutex::default(),
        });
        let copy = Self { object, shared: Arc::default(), name: place.name.as_str().into() };
        model.backend().library.instance_initialize(copy.handle().any())?;
        Ok(copy)
    }

    pub(super) fn handle(&self) -> Handle<InstanceObject> {
        self.object.handle()
    }

    /// It is given a batch.
    pub(super) fn set_execution(&self, execution: Option<Arc<HostedExecution>>) {
        self.object.executions.lock().unwrap_or_else(PoisonError::into_inner).extend(execution);
    }

    pub(super) fn model(&self) -> &Arc<LibraryModel> {
        &self.object.model
    }
}

impl Drop for HostedCopy {
    fn drop(&mut self) {
        let _finalizing = FinalizeMark::new();
        let finalized = self.object.model.backend().library.instance_finalize(self.object.handle().any());
        if let Err(error) = finalized {
            log_error(&format!("instance '{}' failed to finalize: {error}", self.name));
        }
    }
}
