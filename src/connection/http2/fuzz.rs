//! placeholder
pub fn fuzz_connection(_input: &[u8]) {}
