//! Implements the connections' body buffer with an aligned buffer, so that tensors in a body need no copy. The
//! connection code knows only the trait, and limits the size.

use bytes::Bytes;

use crate::tensor::AlignedBuffer;
use crate::wire::message::BodyBuffer;

impl BodyBuffer for AlignedBuffer {
    fn announced(aligned_at: usize, size: usize) -> Self {
        Self::announced(aligned_at, size)
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }

    fn resize(&mut self, size: usize) {
        self.resize(size);
    }

    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn freeze(self) -> Bytes {
        self.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::http1::{Http1Connection, Http1Settings};
    use crate::limits::TENSOR_ALIGNMENT;
    use crate::time::Instant;

    fn body(input: &[u8], piece_size_max: usize) -> Bytes {
        let settings =
            Http1Settings { aligned_after: Some("inference-header-content-length"), ..Http1Settings::default() };
        let mut connection = Http1Connection::<AlignedBuffer>::new(settings);
        let mut input = input;
        while !input.is_empty() {
            let space = connection.input_space(usize::MAX);
            let count = space.len().min(input.len()).min(piece_size_max);
            space[..count].copy_from_slice(&input[..count]);
            connection.handle_input(count, Instant::ZERO);
            input = &input[count..];
            if let Some(message) = connection.poll_message(Instant::ZERO).unwrap() {
                return message.body;
            }
        }
        panic!("the message is not complete");
    }

    #[test]
    fn binary_data_begins_at_an_aligned_address() {
        for (json_size, size) in [(0, 10), (1, 10), (63, 100), (64, 100), (97, 5_000), (1_000, 3_000_000)] {
            let want: Vec<u8> = (0..size).map(|value: u32| (value % 251) as u8).collect();
            let fields = format!("POST / HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: {json_size}\r\n");
            let mut sized = format!("{fields}Content-Length: {size}\r\n\r\n").into_bytes();
            sized.extend_from_slice(&want);
            let mut chunked = format!("{fields}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
            for chunk in want.chunks(70_001) {
                chunked.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                chunked.extend_from_slice(chunk);
                chunked.extend_from_slice(b"\r\n");
            }
            chunked.extend_from_slice(b"0\r\n\r\n");
            for (input, piece_size_max) in
                [(&sized, usize::MAX), (&sized, 999), (&chunked, usize::MAX), (&chunked, 999)]
            {
                let body = body(input, piece_size_max);
                assert_eq!(body, want, "{json_size} {size}");
                assert_eq!(body.slice(json_size..).as_ptr().addr() % TENSOR_ALIGNMENT, 0, "{json_size} {size}");
            }
        }
    }
}
