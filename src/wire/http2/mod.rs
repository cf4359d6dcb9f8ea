//! HTTP/2 as bytes (RFC 9113): frames, settings and error codes, both ways. Called by
//! `connection::http2`. Reads slices it is given, keeps nothing and never blocks; the payload of a
//! DATA frame is never held here, it goes where the connection puts it.

pub mod error;
pub mod frame;
pub mod settings;

#[cfg(test)]
mod tests;

/// What a client sends first (§3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest window there can be (§6.9.1).
pub const WINDOW_SIZE_MAX: u32 = 0x7fff_ffff;
/// Every window's size before it is told otherwise (§6.9.2).
pub const WINDOW_SIZE_INITIAL: u32 = 65_535;
/// The largest payload that every peer takes, and the least it may be told to take (§4.2).
pub const FRAME_SIZE_LEAST: u32 = 16_384;
/// The largest payload that a peer may be told to take (§6.5.2).
pub const FRAME_SIZE_MOST: u32 = 0xff_ffff;

/// The number of a stream; 0 is the connection (§5.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

impl StreamId {
    /// The connection itself.
    pub const CONNECTION: Self = Self(0);
    /// The largest number there is.
    pub const LARGEST: Self = Self(0x7fff_ffff);

    /// Whether a client may open it (§5.1.1).
    pub const fn is_of_client(self) -> bool {
        self.0 % 2 == 1
    }
}
