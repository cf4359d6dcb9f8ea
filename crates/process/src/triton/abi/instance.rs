//! `TRITONBACKEND_ModelInstance*`, without statistics.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use crate::triton::abi::functions;
use crate::triton::instance_object::InstanceObject;
use crate::triton::memory::BufferAttributesObject;
use crate::triton::message::MessageObject;
use crate::triton::model_object::ModelObject;
use crate::triton::object::{Handle, Items, Out, Text};
use base::error::Error;

functions! {
    TRITONBACKEND_ModelInstanceName(instance: Handle<InstanceObject>, name: Out<Text>) {
        name.set(Text::of(&instance.get()?.name))
    }

    TRITONBACKEND_ModelInstanceKind(instance: Handle<InstanceObject>, kind: Out<u32>) {
        kind.set(instance.get()?.kind)
    }

    TRITONBACKEND_ModelInstanceDeviceId(instance: Handle<InstanceObject>, device: Out<i32>) {
        device.set(instance.get()?.device)
    }

    TRITONBACKEND_ModelInstanceHostPolicy(instance: Handle<InstanceObject>, policy: Out<Handle<MessageObject>>) {
        policy.set(instance.get()?.host_policy.handle())
    }

    TRITONBACKEND_ModelInstanceIsPassive(instance: Handle<InstanceObject>, is_passive: Out<bool>) {
        is_passive.set(instance.get()?.is_passive)
    }

    TRITONBACKEND_ModelInstanceProfileCount(instance: Handle<InstanceObject>, count: Out<u32>) {
        count.set(u32::try_from(instance.get()?.profiles.len()).unwrap_or(u32::MAX))
    }

    TRITONBACKEND_ModelInstanceProfileName(instance: Handle<InstanceObject>, index: u32, name: Out<Text>) {
        name.set(Text::null())?;
        let profiles = &instance.get()?.profiles;
        let profile = profiles.get(index as usize).ok_or_else(|| {
            let count = profiles.len();
            Error::invalid(format!("out of bounds index {index}: instance is configured with {count} profiles"))
        })?;
        name.set(Text::of(profile))
    }

    // Secondary devices are DLA cores: the configuration's are logged at load as without an effect.
    TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance: Handle<InstanceObject>, count: Out<u32>) {
        instance.get()?;
        count.set(0)
    }

    TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
        instance: Handle<InstanceObject>, index: u32, kind: Out<Text>, _id: Out<i64>
    ) {
        instance.get()?;
        kind.set(Text::null())?;
        Err(Error::invalid(format!("out of bounds index {index}: instance is configured with 0 secondary devices")))
    }

    TRITONBACKEND_ModelInstanceModel(instance: Handle<InstanceObject>, model: Out<Handle<ModelObject>>) {
        model.set(instance.get()?.model.handle())
    }

    TRITONBACKEND_ModelInstanceState(instance: Handle<InstanceObject>, state: Out<*mut c_void>) {
        state.set(instance.get()?.state.load(Ordering::Acquire))
    }

    TRITONBACKEND_ModelInstanceSetState(instance: Handle<InstanceObject>, state: *mut c_void) {
        instance.get()?.state.store(state, Ordering::Release);
        Ok(())
    }

    // Checked and not kept, as for a model.
    TRITONBACKEND_ModelInstanceReportMemoryUsage(
        instance: Handle<InstanceObject>, usage: Items<Handle<BufferAttributesObject>>, count: u32
    ) {
        instance.get()?;
        usage.get(u64::from(count), "buffers")?.iter().try_for_each(|attributes| attributes.get().map(drop))
    }
}
