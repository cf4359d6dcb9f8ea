//! `TRITONBACKEND_Model*`.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use crate::triton::abi::functions;
use crate::triton::backend_object::BackendObject;
use crate::triton::memory::BufferAttributesObject;
use crate::triton::message::MessageObject;
use crate::triton::model_object::ModelObject;
use crate::triton::object::{Handle, Items, Out, Owned, Text};
use crate::triton::server_object::ServerObject;
use base::error::Error;

/// The only version of model configurations.
const CONFIG_VERSION: u32 = 1;

functions! {
    TRITONBACKEND_ModelName(model: Handle<ModelObject>, name: Out<Text>) { name.set(Text::of(&model.get()?.name)) }

    TRITONBACKEND_ModelVersion(model: Handle<ModelObject>, version: Out<u64>) { version.set(model.get()?.version) }

    TRITONBACKEND_ModelRepository(model: Handle<ModelObject>, kind: Out<u32>, location: Out<Text>) {
        let model = model.get()?;
        kind.set(0)?;
        location.set(Text::of(&model.directory))
    }

    TRITONBACKEND_ModelConfig(model: Handle<ModelObject>, version: u32, config: Out<Handle<MessageObject>>) {
        let model = model.get()?;
        check_version(version)?;
        let message = Owned::new(MessageObject::new(&*model.config()));
        config.set(message.handle())?;
        message.into_handle();
        Ok(())
    }

    TRITONBACKEND_ModelAutoCompleteConfig(model: Handle<ModelObject>, completes: Out<bool>) {
        completes.set(model.get()?.auto_completes)
    }

    TRITONBACKEND_ModelSetConfig(model: Handle<ModelObject>, version: u32, config: Handle<MessageObject>) {
        let (model, config) = (model.get()?, config.get()?);
        check_version(version)?;
        model.set_config(&config.json)
    }

    TRITONBACKEND_ModelServer(model: Handle<ModelObject>, server: Out<Handle<ServerObject>>) {
        server.set(model.get()?.server.handle())
    }

    TRITONBACKEND_ModelBackend(model: Handle<ModelObject>, backend: Out<Handle<BackendObject>>) {
        backend.set(model.get()?.backend.object.handle())
    }

    TRITONBACKEND_ModelState(model: Handle<ModelObject>, state: Out<*mut c_void>) {
        state.set(model.get()?.state.load(Ordering::Acquire))
    }

    TRITONBACKEND_ModelSetState(model: Handle<ModelObject>, state: *mut c_void) {
        model.get()?.state.store(state, Ordering::Release);
        Ok(())
    }

    // Checked and not kept: this server shows the memory of GPUs as the driver knows it.
    TRITONBACKEND_ModelReportMemoryUsage(
        model: Handle<ModelObject>, usage: Items<Handle<BufferAttributesObject>>, count: u32
    ) {
        model.get()?;
        usage.get(u64::from(count), "buffers")?.iter().try_for_each(|attributes| attributes.get().map(drop))
    }
}

fn check_version(version: u32) -> Result<(), Error> {
    if version == CONFIG_VERSION {
        return Ok(());
    }
    Err(Error::invalid(format!("model configuration version {version} not supported, supported versions are: 1")))
}
