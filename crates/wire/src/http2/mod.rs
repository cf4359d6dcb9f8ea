//! HTTP/2 framing (RFC 9113): decodes and encodes frames, settings and error codes. Called by `connection::http2`.
//! Stateless; the payload of DATA frames does not pass through here.

pub mod error;
pub mod frame;
pub mod settings;

#[cfg(test)]
mod tests;

/// The connection preface: the first bytes of a client (§3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Largest flow-control window in bytes (§6.9.1).
pub const WINDOW_SIZE_MAX: u32 = 0x7fff_ffff;
/// Initial size of every flow-control window in bytes, without a setting (§6.9.2).
pub const WINDOW_SIZE_INITIAL: u32 = 65_535;
/// Payload bytes that every peer must accept; SETTINGS_MAX_FRAME_SIZE cannot be less (§4.2).
pub const FRAME_SIZE_LEAST: u32 = 16_384;
/// Largest value of SETTINGS_MAX_FRAME_SIZE in bytes (§6.5.2).
pub const FRAME_SIZE_MOST: u32 = 0xff_ffff;

/// A stream identifier; 0 is the connection (§5.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

impl StreamId {
    /// The connection itself.
    pub const CONNECTION: Self = Self(0);
    /// The largest identifier: 31 bits.
    pub const LARGEST: Self = Self(0x7fff_ffff);

    /// Returns true if it is for streams that a client opens: those are odd (§5.1.1).
    pub const fn is_of_client(self) -> bool {
        self.0 % 2 == 1
    }
}
