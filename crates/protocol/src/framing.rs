//! Encodes `prost` messages with gRPC's five-byte prefix, and decodes them without it. For the messages that are
//! too rare to have hand-written code.

use bytes::Bytes;
use prost::Message;

use base::error::{Code, Error};
use wire::grpc::prefix;

/// Triton's text for bytes that are not a message of the expected type.
pub const UNREADABLE: &str = "Unable to parse request";

/// Encodes a message with its prefix.
///
/// # Errors
///
/// `Internal` if the message is larger than 4 GiB.
pub fn framed(message: &impl Message) -> Result<Bytes, Error> {
    let size = message.encoded_len();
    let mut out = frame(size)?;
    message.encode_raw(&mut out);
    Ok(out.into())
}

/// Decodes a message.
///
/// # Errors
///
/// `Internal`, with Triton's text, if the bytes are not a message of this type.
pub fn read<M: Message + Default>(message: &[u8]) -> Result<M, Error> {
    M::decode(message).map_err(|_| Error::new(Code::Internal, UNREADABLE))
}

/// A buffer with the prefix of a message of `size` bytes, and room for it.
pub(super) fn frame(size: usize) -> Result<Vec<u8>, Error> {
    let prefix = prefix(size).ok_or_else(|| Error::internal("a response does not fit into a gRPC message"))?;
    let mut out = Vec::with_capacity(size.saturating_add(prefix.len()));
    out.extend_from_slice(&prefix);
    Ok(out)
}
