//! The descriptor of `inference.ModelConfig`: the one list of its fields, which the readers, the writers and the check
//! for unsupported fields all walk. Built once, on first use.

use std::sync::OnceLock;

use prost_reflect::{DescriptorPool, MessageDescriptor};

use wire::proto;

/// The descriptor of `inference.ModelConfig`.
pub fn model_config() -> &'static MessageDescriptor {
    static DESCRIPTOR: OnceLock<MessageDescriptor> = OnceLock::new();
    DESCRIPTOR.get_or_init(|| {
        DescriptorPool::decode(proto::DESCRIPTORS)
            .ok()
            .and_then(|pool| pool.get_message_by_name("inference.ModelConfig"))
            .expect("the build compiled these descriptors from model_config.proto")
    })
}
