//! The questions beside the load, one at a time: what the model is, what the server has counted.
//! Over a connection of its own, of the same protocol as the load.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;

use crate::loadgen::description::{Config, Description};
use crate::loadgen::exchange::Exchange;
use crate::loadgen::failure::{Failure, Kind};
use crate::loadgen::http1::Http1;
use crate::loadgen::http2::Http2;
use crate::loadgen::request::{Method, Outgoing, RequestPlan};
use crate::loadgen::statistics::Statistics;
use crate::loadgen::target::{Encoding, Protocol};
use crate::wire::json::{Document, Value};

/// How long one answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks a server about a model.
pub struct Control {
    address: SocketAddr,
    plan: RequestPlan,
    connection: Option<(TcpStream, Box<dyn Exchange>)>,
}

impl Control {
    /// Connects with the first question.
    pub const fn new(address: SocketAddr, plan: RequestPlan) -> Self {
        Self { address, plan, connection: None }
    }

    /// What the model is. Without a configuration, which is Triton's extension, the description
    /// has none.
    pub fn describe(&mut self) -> Result<Description, String> {
        let answer = self.ask(Method::ModelMetadata).map_err(|failure| failure.to_string())?;
        let mut model = match self.plan.protocol {
            Protocol::Http => Description::from_json(&answer)?,
            Protocol::Grpc => Description::from_message(&answer)?,
        };
        model.config = self.ask(Method::ModelConfig).ok().and_then(|answer| match self.plan.protocol {
            Protocol::Http => Config::from_json(&answer),
            Protocol::Grpc => Config::from_message(&answer),
        });
        Ok(model)
    }

    /// How tensors travel over HTTP to a server that was told nothing else: as binary data, unless it
    /// says what extensions it has and that is not among them.
    pub fn encoding(&mut self) -> Encoding {
        let answer = self.ask(Method::ServerMetadata).unwrap_or_default();
        let document = Document::parse(&answer, &[]).ok();
        let extensions = document.as_ref().and_then(|document| document.root().get("extensions"));
        let has_binary = |list: Value<'_, '_>| list.elements().any(|name| name.as_str() == Some("binary_tensor_data"));
        if extensions.is_none_or(has_binary) { Encoding::Binary } else { Encoding::Json }
    }

    /// What the server has counted so far. `None` where it does not offer that.
    pub fn statistics(&mut self) -> Option<Statistics> {
        let answer = self.ask(Method::ModelStatistics).ok()?;
        match self.plan.protocol {
            Protocol::Http => Statistics::from_json(&answer),
            Protocol::Grpc => Statistics::from_message(&answer),
        }
    }

    fn ask(&mut self, method: Method) -> Result<Bytes, Failure> {
        let outgoing = self.plan.control(method);
        let had_connection = self.connection.is_some();
        match self.call(&outgoing) {
            // The server may have closed a connection that lay idle.
            Err(failure) if had_connection && failure.kind == Kind::Closed => self.call(&outgoing),
            outcome => outcome,
        }
    }

    fn call(&mut self, outgoing: &Outgoing) -> Result<Bytes, Failure> {
        let (mut stream, mut exchange) = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        exchange.handle_request(0, outgoing);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            while let Some(bytes) = exchange.poll_output() {
                let size = bytes.len();
                stream.write_all(bytes).map_err(|error| closed(&error))?;
                exchange.handle_sent(size);
            }
            if let Some(finished) = exchange.poll_finished() {
                if !exchange.is_over() {
                    self.connection = Some((stream, exchange));
                }
                return finished.outcome;
            }
            match stream.read(&mut buffer).map_err(|error| closed(&error))? {
                0 => {
                    exchange.handle_end();
                    let finished = exchange.poll_finished().map(|finished| finished.outcome);
                    return finished
                        .unwrap_or_else(|| Err(Failure::new(Kind::Closed, "the server closed the connection")));
                }
                size => exchange.handle_bytes(buffer.get(..size).unwrap_or_default())?,
            }
        }
    }

    fn connect(&self) -> Result<(TcpStream, Box<dyn Exchange>), Failure> {
        let refused =
            |error: std::io::Error| Failure::new(Kind::Connect, format!("{}: {error}", self.plan.address.authority()));
        let stream = TcpStream::connect_timeout(&self.address, TIMEOUT).map_err(refused)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(refused)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let exchange: Box<dyn Exchange> = match self.plan.protocol {
            Protocol::Http => Box::new(Http1::new(true)),
            Protocol::Grpc => Box::new(Http2::new(&self.plan.address.authority(), &self.plan.fields, true)),
        };
        Ok((stream, exchange))
    }
}

fn closed(error: &std::io::Error) -> Failure {
    let is_late = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
    Failure::new(if is_late { Kind::Timeout } else { Kind::Closed }, error.to_string())
}
