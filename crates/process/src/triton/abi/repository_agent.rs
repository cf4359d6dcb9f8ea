//! `TRITONREPOAGENT_*`: the functions of `tritonrepoagent.h` that an agent calls.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use crate::triton::abi::functions;
use crate::triton::agent_object::{AgentModelObject, AgentObject};
use crate::triton::message::MessageObject;
use crate::triton::object::{Handle, Out, Owned, Text};
use base::error::Error;

/// The version of `tritonrepoagent.h`.
const AGENT_API: (u32, u32) = (0, 1);
/// `TRITONREPOAGENT_ARTIFACT_FILESYSTEM`: all places are directories of this machine, also of models from stores.
const FILESYSTEM: u32 = 0;

functions! {
    TRITONREPOAGENT_ApiVersion(major: Out<u32>, minor: Out<u32>) {
        major.set(AGENT_API.0)?;
        minor.set(AGENT_API.1)
    }

    TRITONREPOAGENT_ModelRepositoryLocation(
        agent: Handle<AgentObject>, model: Handle<AgentModelObject>, kind: Out<u32>, location: Out<Text>
    ) {
        agent.get()?;
        kind.set(FILESYSTEM)?;
        model.get()?.with_location(|path| location.set(Text::of(path)))?
    }

    TRITONREPOAGENT_ModelRepositoryLocationAcquire(
        agent: Handle<AgentObject>, model: Handle<AgentModelObject>, kind: u32, location: Out<Text>
    ) {
        agent.get()?;
        check_kind(kind)?;
        model.get()?.with_acquired(|path| location.set(Text::of(path)))?
    }

    TRITONREPOAGENT_ModelRepositoryLocationRelease(
        agent: Handle<AgentObject>, model: Handle<AgentModelObject>, _location: Text
    ) {
        agent.get()?;
        model.get()?.release()
    }

    TRITONREPOAGENT_ModelRepositoryUpdate(
        agent: Handle<AgentObject>, model: Handle<AgentModelObject>, kind: u32, location: Text
    ) {
        agent.get()?;
        check_kind(kind)?;
        model.get()?.set_location(&location.get("location")?)
    }

    TRITONREPOAGENT_ModelParameterCount(
        agent: Handle<AgentObject>, model: Handle<AgentModelObject>, count: Out<u32>
    ) {
        agent.get()?;
        count.set(u32::try_from(model.get()?.parameters.len()).unwrap_or(u32::MAX))
    }

    TRITONREPOAGENT_ModelParameter(
        agent: Handle<AgentObject>, model: Handle<AgentModelObject>, index: u32, name: Out<Text>, value: Out<Text>
    ) {
        agent.get()?;
        let parameter = model.get()?.parameters.get(index as usize);
        let (key, text) = parameter.ok_or_else(|| Error::invalid("index out of range for model parameters"))?;
        name.set(Text::of(key))?;
        value.set(Text::of(text))
    }

    TRITONREPOAGENT_ModelConfig(
        agent: Handle<AgentObject>, model: Handle<AgentModelObject>, version: u32, config: Out<Handle<MessageObject>>
    ) {
        agent.get()?;
        let model = model.get()?;
        if version != 1 {
            return Err(Error::invalid(format!(
                "model configuration version {version} not supported, supported versions are: 1"
            )));
        }
        let message = Owned::new(MessageObject::new(&*model.config));
        config.set(message.handle())?;
        message.into_handle();
        Ok(())
    }

    TRITONREPOAGENT_ModelState(model: Handle<AgentModelObject>, state: Out<*mut c_void>) {
        state.set(model.get()?.state())
    }

    TRITONREPOAGENT_ModelSetState(model: Handle<AgentModelObject>, state: *mut c_void) {
        model.get()?.state.store(state, Ordering::Release);
        Ok(())
    }

    TRITONREPOAGENT_State(agent: Handle<AgentObject>, state: Out<*mut c_void>) {
        state.set(agent.get()?.state.load(Ordering::Acquire))
    }

    TRITONREPOAGENT_SetState(agent: Handle<AgentObject>, state: *mut c_void) {
        agent.get()?.state.store(state, Ordering::Release);
        Ok(())
    }
}

fn check_kind(kind: u32) -> Result<(), Error> {
    if kind == FILESYSTEM {
        return Ok(());
    }
    Err(Error::invalid("Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'"))
}
