//! A store of which each answer is computed: larger than any stand-in would hold, or with a count of concurrent
//! requests.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::proxy::{listen, read_head};

/// An S3 of one bucket. Its threads end with the process.
pub struct Scripted {
    port: u16,
    state: Arc<State>,
}

/// The body for a target; `None` if it does not exist.
type Answer = dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync;

struct State {
    answer: Box<Answer>,
    pause: Duration,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Scripted {
    /// Gives these answers, each after a pause.
    pub fn new(pause: Duration, answer: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        let state = State { answer: Box::new(answer), pause, now: AtomicUsize::new(0), most: AtomicUsize::new(0) };
        let state = Arc::new(state);
        let shared = Arc::clone(&state);
        let port = listen(move |client| shared.serve(client));
        Self { port, state }
    }

    /// Its address, as a URL has it.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The most concurrent requests.
    pub fn most_at_a_time(&self) -> usize {
        self.state.most.load(Ordering::SeqCst)
    }
}

impl State {
    /// One request, on a connection of its own.
    fn serve(&self, mut client: TcpStream) -> std::io::Result<()> {
        let head = read_head(&mut client)?;
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        thread::sleep(self.pause);
        let target = head.split(' ').nth(1).unwrap_or_default();
        let (status, body) = (self.answer)(target).map_or((404, Vec::new()), |body| (200, body));
        self.now.fetch_sub(1, Ordering::SeqCst);
        let head = format!(
            "HTTP/1.1 {status} x\r\nETag: \"tag\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        client.write_all(head.as_bytes())?;
        client.write_all(&body)
    }
}

/// A page of a listing as S3 has it: keys and sizes, and the token of the next page.
pub fn listing(objects: impl Iterator<Item = (String, usize)>, next: Option<usize>) -> Vec<u8> {
    let contents: String = objects
        .map(|(key, size)| {
            format!(
                "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>\"tag\"</ETag>\
                 <LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        })
        .collect();
    let token = next.map(|next| format!("<NextContinuationToken>{next}</NextContinuationToken>")).unwrap_or_default();
    format!("<ListBucketResult><IsTruncated>{}</IsTruncated>{token}{contents}</ListBucketResult>", next.is_some())
        .into_bytes()
}
