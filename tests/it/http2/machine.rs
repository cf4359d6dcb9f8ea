//! The state machine itself, to try the cases on.

use deuteron::connection::http2::{
    CallStatus, ConnectionEvent, Http2Connection, Http2Settings, MessageDelivery, NextMessage,
};
use deuteron::tensor::AlignedBuffer;
use deuteron::time::Instant;
use deuteron::wire::message::Reply;

use super::frame::PREFACE;
use super::peer::Peer;

/// The state machine, with a caller that answers every call with two bytes.
pub struct Machine {
    connection: Http2Connection<AlignedBuffer, ()>,
    piece_size: usize,
}

impl Machine {
    /// A machine that gets its input in pieces of at most `piece_size` bytes.
    pub fn new(piece_size: usize) -> Self {
        Self { connection: Http2Connection::new(Http2Settings::default(), Instant::ZERO), piece_size }
    }

    fn handle_events(&mut self) {
        let (connection, now) = (&mut self.connection, Instant::ZERO);
        while let Some(event) = connection.poll_event(now) {
            match event {
                ConnectionEvent::Call { stream, .. } => connection.accept_call(stream, MessageDelivery::One(())),
                ConnectionEvent::Fault { stream, .. } => {
                    let status = CallStatus { code: 13, text: String::new(), fields: Default::default() };
                    connection.end_call(stream, Some(status), now);
                }
                ConnectionEvent::Message { stream, .. } => {
                    connection.send_reply(stream, Reply::new(404, "text/plain", "no"), now);
                }
                ConnectionEvent::Next(stream) => assert_eq!(connection.take_next(stream), Ok(NextMessage::Nothing)),
                ConnectionEvent::Reset { stream, .. } => connection.handle_gone(stream),
                // Answered already.
                ConnectionEvent::Refused(_) => {}
                ConnectionEvent::Whole { stream, .. } => {
                    connection.send_answer(stream, [bytes::Bytes::from_static(&[0, 0, 0, 0, 2, 8, 1])], now);
                }
            }
        }
    }
}

impl Peer for Machine {
    fn send(&mut self, bytes: &[u8]) -> bool {
        // The preface was read before there was a connection.
        let mut rest = bytes.strip_prefix(PREFACE).unwrap_or(bytes);
        while !rest.is_empty() && !self.connection.is_finished() {
            let space = self.connection.input_space(usize::MAX);
            let count = space.len().min(rest.len()).min(self.piece_size);
            space[..count].copy_from_slice(&rest[..count]);
            self.connection.handle_input(count, Instant::ZERO);
            rest = &rest[count..];
            self.handle_events();
        }
        true
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        self.connection.prepare_transmit(Instant::ZERO);
        let bytes = self.connection.transmit_parts().collect::<Vec<_>>().concat();
        self.connection.handle_transmitted(bytes.len(), Instant::ZERO);
        if bytes.is_empty() && self.connection.is_finished() { None } else { Some(bytes) }
    }
}
