//! `TRITONSERVER_Message*`.

use std::ffi::c_char;

use crate::triton::abi::functions;
use crate::triton::message::MessageObject;
use crate::triton::object::{Handle, Items, Out, Owned};

functions! {
    TRITONSERVER_MessageNewFromSerializedJson(message: Out<Handle<MessageObject>>, base: Items<u8>, byte_size: usize) {
        let parsed = MessageObject::parse(base.get(byte_size as u64, "bytes of the message")?)?;
        let owned = Owned::new(parsed);
        message.set(owned.handle())?;
        owned.into_handle();
        Ok(())
    }

    TRITONSERVER_MessageDelete(message: Handle<MessageObject>) { message.delete() }

    TRITONSERVER_MessageSerializeToJson(
        message: Handle<MessageObject>, base: Out<*const c_char>, byte_size: Out<usize>
    ) {
        let json = &message.get()?.json;
        base.set(json.as_ptr().cast())?;
        byte_size.set(json.len())
    }
}
