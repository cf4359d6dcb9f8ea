//! Messages of gRPC as they go over the wire: with their five-byte prefix, or read from behind it.

use bytes::Bytes;
use prost::Message;

use crate::error::{Code, Error};
use crate::protocol::grpc::message::UNREADABLE;
use crate::wire::grpc::prefix;

/// A message, framed.
pub fn framed(message: &impl Message) -> Result<Bytes, Error> {
    let size = message.encoded_len();
    let mut out = frame(size)?;
    message.encode_raw(&mut out);
    Ok(out.into())
}

/// Reads a message that has no reader of its own.
pub fn read<M: Message + Default>(message: &[u8]) -> Result<M, Error> {
    M::decode(message).map_err(|_| Error::new(Code::Internal, UNREADABLE))
}

/// The beginning of a framed message of so many bytes.
pub(super) fn frame(size: usize) -> Result<Vec<u8>, Error> {
    let prefix = prefix(size).ok_or_else(|| Error::internal("a response does not fit into a gRPC message"))?;
    let mut out = Vec::with_capacity(size.saturating_add(prefix.len()));
    out.extend_from_slice(&prefix);
    Ok(out)
}
