//! The bounds that several modules of this crate share, each with its reason.

use std::time::Duration;

use base::limits::{CLIENT_RESETS_MAX, FRAME_SIZE_MAX};

/// The time that a request being received waits for memory before it is refused: others finish
/// meanwhile, and no two wait for each other forever.
pub const RECEIVE_WAIT_MAX: Duration = Duration::from_secs(1);
/// Bytes that a client may send on one HTTP/2 stream before we send WINDOW_UPDATE.
pub const STREAM_WINDOW_SIZE: u32 = 1024 * 1024;
/// Bytes that a client may send on all streams of a connection before we send WINDOW_UPDATE: several large requests at
/// once.
pub const CONNECTION_WINDOW_SIZE: u32 = 8 * 1024 * 1024;
/// CONTINUATION frames of one field block: enough for the largest block in small frames.
pub const CONTINUATIONS_MAX: u32 = 32;
/// Streams that we reset because of a client's faults in [`BUDGET_INTERVAL`](base::limits::BUDGET_INTERVAL): the attack of a rapid reset, with the server
/// made to send the resets.
pub const SERVER_RESETS_MAX: u32 = 200;
/// Bytes of unsent control frames (acknowledgements, WINDOW_UPDATE, RST_STREAM, GOAWAY); beyond it the connection is
/// not read.
pub const CONTROL_BACKLOG_SIZE_MAX: usize = 64 * 1024;
/// Bytes framed ahead of the socket: the most that a frame of another stream has to wait behind.
pub const TRANSMIT_SIZE_MAX: usize = 256 * 1024;
/// Bytes of one stream that are sent before the next stream has its turn.
pub const SEND_QUANTUM: usize = 64 * 1024;
/// Bytes of TLS records that are not read yet, on one connection. Half of it holds the largest record, or a handshake message
/// that comes in several, as the certificates of a client may; the other half is room for what follows.
pub const TLS_INPUT_SIZE_MAX: usize = 64 * 1024;
/// Tickets that a client gets to resume its TLS 1.3 session: one for its next connection, which brings another.
pub const TLS_TICKETS: usize = 1;
/// Empty lines skipped before a request line (RFC 9112 §2.2): some clients send one after a body.
pub const BLANK_LINES_MAX: usize = 4;
const _: () = assert!(TLS_INPUT_SIZE_MAX >= 2 * (16 * 1024 + 2_048 + 5), "a record of the largest size is read whole");
const _: () = assert!(FRAME_SIZE_MAX <= STREAM_WINDOW_SIZE, "the largest frame fits into a window");
const _: () = assert!(STREAM_WINDOW_SIZE <= CONNECTION_WINDOW_SIZE, "a stream can use its window");
const _: () = assert!(SEND_QUANTUM <= TRANSMIT_SIZE_MAX, "several streams have a turn within the bytes framed ahead");
const _: () =
    assert!(SERVER_RESETS_MAX < CLIENT_RESETS_MAX, "resets for faults are limited more tightly than the client's own");
