//! `TRITONBACKEND_Backend*`.

use std::ffi::c_void;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::triton::abi::functions;
use crate::triton::backend_object::{AttributesObject, BackendObject, PreferredGroup};
use crate::triton::memory::MemoryManagerObject;
use crate::triton::message::MessageObject;
use crate::triton::object::{Handle, Items, Out, Text};
use base::error::Error;
use base::limits::INSTANCES_MAX;
use model::InstanceKind;

functions! {
    TRITONBACKEND_BackendName(backend: Handle<BackendObject>, name: Out<Text>) {
        name.set(Text::of(&backend.get()?.name))
    }

    TRITONBACKEND_BackendConfig(backend: Handle<BackendObject>, config: Out<Handle<MessageObject>>) {
        config.set(backend.get()?.config.handle())
    }

    TRITONBACKEND_BackendExecutionPolicy(backend: Handle<BackendObject>, policy: Out<u32>) {
        policy.set(backend.get()?.policy.load(Ordering::Relaxed))
    }

    TRITONBACKEND_BackendSetExecutionPolicy(backend: Handle<BackendObject>, policy: u32) {
        if policy > 1 {
            return Err(Error::invalid(format!("{policy} is no TRITONBACKEND_ExecutionPolicy")));
        }
        backend.get()?.policy.store(policy, Ordering::Relaxed);
        Ok(())
    }

    TRITONBACKEND_BackendArtifacts(backend: Handle<BackendObject>, kind: Out<u32>, location: Out<Text>) {
        let backend = backend.get()?;
        kind.set(0)?;
        location.set(Text::of(&backend.directory))
    }

    TRITONBACKEND_BackendMemoryManager(backend: Handle<BackendObject>, manager: Out<Handle<MemoryManagerObject>>) {
        manager.set(backend.get()?.memory.handle())
    }

    TRITONBACKEND_BackendState(backend: Handle<BackendObject>, state: Out<*mut c_void>) {
        state.set(backend.get()?.state.load(Ordering::Acquire))
    }

    TRITONBACKEND_BackendSetState(backend: Handle<BackendObject>, state: *mut c_void) {
        backend.get()?.state.store(state, Ordering::Release);
        Ok(())
    }

    TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
        attributes: Handle<AttributesObject>, kind: u32, count: u64, devices: Items<u64>, device_count: u64
    ) {
        let attributes = attributes.get()?;
        let kind = match kind {
            0 => None,
            1 => Some(InstanceKind::Cpu),
            2 => Some(InstanceKind::Gpu),
            3 => Some(InstanceKind::Model),
            kind => return Err(Error::invalid(format!("{kind} is no TRITONSERVER_InstanceGroupKind"))),
        };
        // The list may be null, for any length.
        let gpus = devices.get(device_count, "devices").unwrap_or_default().to_vec();
        let mut preferred = attributes.preferred.lock().unwrap_or_else(PoisonError::into_inner);
        if preferred.len() >= INSTANCES_MAX {
            return Err(Error::invalid(format!("a backend prefers more than {INSTANCES_MAX} instance groups")));
        }
        preferred.push(PreferredGroup { kind, count, gpus });
        Ok(())
    }

    TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes: Handle<AttributesObject>, enabled: bool) {
        attributes.get()?.is_parallel.store(enabled, Ordering::Relaxed);
        Ok(())
    }
}
