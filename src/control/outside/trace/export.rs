//! Sends spans to a collector: OTLP over HTTP/1.1, a connection for each batch. A collector that is gone, slow or silent
//! costs spans, which are counted, and nothing else (`docs/decisions/0020-otlp-without-the-sdk.md`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::limits::TRACE_END_TIMEOUT;
use crate::log;
use crate::protocol::trace::otlp;
use crate::queue::trace_queue::TraceQueue;
use crate::runtime::clock;
use crate::settings::TraceSettings;
use crate::time::Instant;
use crate::trace::record::random_id;
use crate::wire::proto::otlp::Span;

/// The time that a collector may take to accept a connection: it is near, or its spans are dropped.
const TRACE_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that a collector may take to answer, as in OpenTelemetry's exporters.
const TRACE_EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a collector's answer that are read: its status line is all that counts.
const TRACE_ANSWER_SIZE_MAX: usize = 4 * 1024;

/// The interval at which a wait for the collector checks whether the server ends.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of an answer that are logged.
const TOLD_SIZE_MAX: usize = 200;

/// Batches spans and sends them. Owned by its thread.
pub struct TraceExporter {
    host: String,
    port: u16,
    path: String,
    resource: Vec<(String, String)>,
    batch_spans: usize,
    batch_delay: Duration,
    /// True if the last batch failed, which was logged.
    has_failed: bool,
    timeouts: ExportTimeouts,
}

/// The time that a collector may take.
#[derive(Clone, Copy)]
struct ExportTimeouts {
    /// To accept a connection.
    connect: Duration,
    /// To answer, with the connection.
    exchange: Duration,
    /// To answer while the server ends.
    ending: Duration,
}

impl Default for ExportTimeouts {
    fn default() -> Self {
        Self { connect: TRACE_CONNECT_TIMEOUT, exchange: TRACE_EXPORT_TIMEOUT, ending: TRACE_END_TIMEOUT / 2 }
    }
}

impl TraceExporter {
    /// Creates it without a connection: it connects when there are spans.
    pub fn new(settings: &TraceSettings) -> Self {
        let (host, port, path) = settings.collector.clone();
        Self {
            host,
            port,
            path,
            resource: settings.resource.clone(),
            batch_spans: usize::try_from(settings.batch_spans).unwrap_or(usize::MAX),
            batch_delay: settings.batch_delay,
            has_failed: false,
            timeouts: ExportTimeouts::default(),
        }
    }

    /// Sends spans until the records end.
    pub fn run(mut self, queue: &TraceQueue) {
        let mut batch: Vec<Span> = Vec::new();
        let mut due = None;
        loop {
            let is_ending = queue.records.is_ending();
            while batch.len() < self.batch_spans
                && let Some(record) = queue.records.pop()
            {
                let epoch = clock::epoch_at_start();
                batch.extend(otlp::spans(record, epoch, random_id()));
            }
            let now = clock::now();
            if batch.is_empty() {
                if is_ending {
                    return;
                }
                due = None;
                std::thread::park();
                continue;
            }
            let send_at = *due.get_or_insert(now + self.batch_delay);
            if batch.len() >= self.batch_spans || send_at <= now || is_ending {
                due = None;
                self.send(std::mem::take(&mut batch), queue);
            } else {
                std::thread::park_timeout(send_at.since(now));
            }
        }
    }

    fn send(&mut self, batch: Vec<Span>, queue: &TraceQueue) {
        let count = batch.len() as u64;
        match self.post(&otlp::request(batch, &self.resource), queue) {
            Ok(()) => {
                queue.count_written(count);
                if std::mem::take(&mut self.has_failed) {
                    log::info("the collector of traces takes spans again");
                }
            }
            Err(error) => {
                queue.count_dropped(count);
                if !std::mem::replace(&mut self.has_failed, true) {
                    let (host, port) = (&self.host, self.port);
                    log::warning(&format!("spans are lost: the collector of traces at {host}:{port}: {error}"));
                }
            }
        }
    }

    /// Sends one request and reads its answer. The time is limited as a whole: a collector may send
    /// a byte now and then.
    fn post(&self, body: &[u8], queue: &TraceQueue) -> io::Result<()> {
        let began = clock::now();
        let mut stream = self.connect()?;
        let pause = LOOK_PAUSE.min(self.timeouts.exchange);
        stream.set_read_timeout(Some(pause))?;
        stream.set_write_timeout(Some(pause))?;
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {host}:{}\r\nContent-Type: application/x-protobuf\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.path,
            self.port,
            body.len()
        );
        let message = [head.as_bytes(), body].concat();
        let mut rest = &message[..];
        let wait = ExportWait { began, timeouts: self.timeouts, queue };
        // A collector may refuse the request before it has all of it, and stop reading.
        let is_refused = || has_input(&stream);
        while !rest.is_empty() && !is_refused() {
            let count = wait.until(|| match (&stream).write(rest) {
                Err(error) if is_blocked(&error) && is_refused() => Ok(0),
                outcome => outcome,
            })?;
            rest = rest.get(count..).unwrap_or_default();
        }
        let (mut answer, mut space) = (Vec::new(), [0; 512]);
        // The first line is all that counts: what follows may have no newline at its end, and the connection stays open.
        while !answer.contains(&b'\n') && answer.len() < TRACE_ANSWER_SIZE_MAX {
            match wait.until(|| stream.read(&mut space))? {
                0 => break,
                count => answer.extend_from_slice(space.get(..count).unwrap_or_default()),
            }
        }
        let line = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let status = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        if line.starts_with(b"HTTP/1.") && status.first() == Some(&b'2') {
            return Ok(());
        }
        let told = line.get(..line.len().min(TOLD_SIZE_MAX)).unwrap_or_default();
        Err(io::Error::new(ErrorKind::InvalidData, format!("it answered '{}'", told.escape_ascii())))
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut failure = io::Error::new(ErrorKind::NotFound, "its name has no address");
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, self.timeouts.connect) {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// The time that a request to the collector may take: less if the server ends.
struct ExportWait<'a> {
    began: Instant,
    timeouts: ExportTimeouts,
    queue: &'a TraceQueue,
}

impl ExportWait<'_> {
    /// Retries until the step ends in something other than a timeout of the socket. A collector
    /// that sends or takes a byte now and then is as late as a silent one.
    fn until<T>(&self, mut step: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            let outcome = step();
            let took = clock::now().since(self.began);
            if took > self.timeouts.exchange || (self.queue.records.is_ending() && took > self.timeouts.ending) {
                return Err(io::Error::new(ErrorKind::TimedOut, "it did not answer in time"));
            }
            match outcome {
                Err(error) if is_blocked(&error) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }
}

/// Returns true if a socket has waited as long as it may.
fn is_blocked(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Returns true if there is something to read, or the end.
fn has_input(stream: &TcpStream) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&now)).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// Returns the outcome of a request to a collector that writes this, again and again.
    fn answered(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let collector = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut space = [0; 4096];
            let _ = stream.read(&mut space).unwrap();
            while stream.write_all(answer).is_ok() && !answer.ends_with(b"\n") {}
        });
        let host = "127.0.0.1".to_owned();
        let exporter = TraceExporter { host, port, ..TraceExporter::new(&TraceSettings::default()) };
        let outcome = exporter.post(b"body", &TraceQueue::new(1));
        collector.join().unwrap();
        outcome.map_or_else(|error| error.to_string(), |()| "well".to_owned())
    }

    #[test]
    fn a_collector_has_taken_spans_when_it_says_so() {
        assert_eq!(answered(b"HTTP/1.1 200 OK\r\n"), "well");
        assert_eq!(answered(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"), "well");
        assert_eq!(answered(b"HTTP/1.1 503 Busy\r\n"), r"it answered 'HTTP/1.1 503 Busy\r'");
        assert_eq!(answered(b"SSH-2.0\r\n"), r"it answered 'SSH-2.0\r'");
        let endless = answered(b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
        assert!(endless.starts_with("it answered 'xxx"), "{endless}");
    }

    /// The outcome of a request of `size` bytes within these times, and its duration. `serve` is the collector, which
    /// listens.
    fn timed(
        timeouts: ExportTimeouts,
        is_ending: bool,
        size: usize,
        serve: impl FnOnce(TcpListener) + Send + 'static,
    ) -> (String, Duration) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || serve(listener));
        let host = "127.0.0.1".to_owned();
        let exporter = TraceExporter { host, port, timeouts, ..TraceExporter::new(&TraceSettings::default()) };
        let queue = TraceQueue::new(1);
        if is_ending {
            queue.records.end();
        }
        let began = clock::now();
        let outcome = exporter.post(&vec![0; size], &queue);
        (outcome.map_or_else(|error| error.to_string(), |()| "well".to_owned()), clock::now().since(began))
    }

    #[test]
    fn an_answer_without_a_newline_at_its_end_is_taken_though_the_connection_stays_open() {
        let timeouts = ExportTimeouts { connect: LONG, exchange: LONG, ending: LONG };
        let (outcome, _) = timed(timeouts, false, 4, |listener| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut space = [0; 4096];
            let _ = stream.read(&mut space).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
            // Until the other end closes.
            while !matches!(stream.read(&mut space), Ok(0) | Err(_)) {}
        });
        assert_eq!(outcome, "well");
    }

    #[test]
    fn a_collector_that_refuses_before_it_has_read_all_is_heard() {
        let timeouts = ExportTimeouts { connect: LONG, exchange: LONG, ending: LONG };
        let (done, refused) = std::sync::mpsc::channel::<()>();
        // More than the buffers of both sockets.
        let (outcome, _) = timed(timeouts, false, 64 * 1024 * 1024, move |listener| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 413 Too Large\r\n\r\n").unwrap();
            let _ = refused.recv();
        });
        drop(done);
        assert_eq!(outcome, r"it answered 'HTTP/1.1 413 Too Large\r'");
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(30);

    /// A collector that takes a connection, writes `bytes` every few milliseconds, and never ends its answer.
    fn endless(bytes: &'static [u8]) -> impl FnOnce(TcpListener) + Send + 'static {
        move |listener| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            let mut space = [0; 512];
            // Until the other end closes.
            while stream.write_all(bytes).is_ok() && !matches!(stream.read(&mut space), Ok(0)) {}
        }
    }

    #[test]
    fn a_collector_that_never_answers_is_given_up_after_the_time_for_the_exchange() {
        for (name, bytes) in [("silent", &b""[..]), ("a byte now and then", b"x")] {
            let timeouts = ExportTimeouts { connect: LONG, exchange: SHORT, ending: LONG };
            let (outcome, took) = timed(timeouts, false, 4, endless(bytes));
            assert_eq!(outcome, "it did not answer in time", "{name}");
            assert!(took >= SHORT && took < LONG / 10, "{name}: {took:?}");
        }
    }

    #[test]
    fn a_server_that_ends_waits_less_for_its_collector() {
        let timeouts = ExportTimeouts { connect: LONG, exchange: LONG, ending: SHORT };
        let (outcome, took) = timed(timeouts, true, 4, endless(b"x"));
        assert_eq!(outcome, "it did not answer in time");
        assert!(took >= SHORT && took < LONG / 10, "{took:?}");
    }

    #[test]
    fn a_collector_that_accepts_no_connection_is_given_up_after_the_time_for_that() {
        let timeouts = ExportTimeouts { connect: SHORT, exchange: LONG, ending: LONG };
        // With its queue of connections full, the kernel answers no further one.
        let (sender, receiver) = std::sync::mpsc::channel();
        let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        listener.bind(&std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        for _ in 0..4 {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            let _ = socket.connect_timeout(&address, Duration::from_millis(20));
            sender.send(socket).unwrap();
        }
        let (host, port) = ("127.0.0.1".to_owned(), address.as_socket().unwrap().port());
        let exporter = TraceExporter { host, port, timeouts, ..TraceExporter::new(&TraceSettings::default()) };
        let began = clock::now();
        let error = exporter.post(b"body", &TraceQueue::new(1)).unwrap_err();
        let took = clock::now().since(began);
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(took >= SHORT && took < LONG / 10, "{took:?}");
        drop(receiver);
    }
}
