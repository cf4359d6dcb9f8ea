//! The questions beside the load, one at a time: what the model is, what the server has counted.
//! Over a connection of its own, of the same protocol as the load.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;

use crate::loadgen::description::{DescribedConfig, ModelDescription};
use crate::loadgen::exchange::Exchange;
use crate::loadgen::failure::{FailureKind, RequestFailure};
use crate::loadgen::http1::Http1Exchange;
use crate::loadgen::http2::Http2Exchange;
use crate::loadgen::request::{OutgoingRequest, RequestMethod, RequestPlan};
use crate::loadgen::statistics::ServerStatistics;
use crate::loadgen::target::{Encoding, Protocol};
use crate::wire::json::{Document, JsonValue};

/// How long one answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks a server about a model.
pub struct ControlClient {
    address: SocketAddr,
    plan: RequestPlan,
    connection: Option<(TcpStream, Box<dyn Exchange>)>,
}

impl ControlClient {
    /// Connects with the first question.
    pub const fn new(address: SocketAddr, plan: RequestPlan) -> Self {
        Self { address, plan, connection: None }
    }

    /// What the model is. Without a configuration, which is Triton's extension, the description
    /// has none.
    pub fn describe(&mut self) -> Result<ModelDescription, String> {
        let answer = self.ask(RequestMethod::ModelMetadata).map_err(|failure| failure.to_string())?;
        let mut model = match self.plan.protocol {
            Protocol::Http => ModelDescription::from_json(&answer)?,
            Protocol::Grpc => ModelDescription::from_message(&answer)?,
        };
        model.config = self.ask(RequestMethod::ModelConfig).ok().and_then(|answer| match self.plan.protocol {
            Protocol::Http => DescribedConfig::from_json(&answer),
            Protocol::Grpc => DescribedConfig::from_message(&answer),
        });
        Ok(model)
    }

    /// How tensors travel over HTTP to a server that was told nothing else: as binary data, unless it
    /// says what extensions it has and that is not among them.
    pub fn encoding(&mut self) -> Encoding {
        let answer = self.ask(RequestMethod::ServerMetadata).unwrap_or_default();
        let document = Document::parse(&answer, &[]).ok();
        let extensions = document.as_ref().and_then(|document| document.root().get("extensions"));
        let has_binary =
            |list: JsonValue<'_, '_>| list.elements().any(|name| name.as_str() == Some("binary_tensor_data"));
        if extensions.is_none_or(has_binary) { Encoding::Binary } else { Encoding::Json }
    }

    /// What the server has counted so far. `None` where it does not offer that.
    pub fn statistics(&mut self) -> Option<ServerStatistics> {
        let answer = self.ask(RequestMethod::ModelStatistics).ok()?;
        match self.plan.protocol {
            Protocol::Http => ServerStatistics::from_json(&answer),
            Protocol::Grpc => ServerStatistics::from_message(&answer),
        }
    }

    fn ask(&mut self, method: RequestMethod) -> Result<Bytes, RequestFailure> {
        let outgoing = self.plan.control(method);
        let had_connection = self.connection.is_some();
        match self.call(&outgoing) {
            // The server may have closed a connection that lay idle.
            Err(failure) if had_connection && failure.kind == FailureKind::Closed => self.call(&outgoing),
            outcome => outcome,
        }
    }

    fn call(&mut self, outgoing: &OutgoingRequest) -> Result<Bytes, RequestFailure> {
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
                    return finished.unwrap_or_else(|| {
                        Err(RequestFailure::new(FailureKind::Closed, "the server closed the connection"))
                    });
                }
                size => exchange.handle_bytes(buffer.get(..size).unwrap_or_default())?,
            }
        }
    }

    fn connect(&self) -> Result<(TcpStream, Box<dyn Exchange>), RequestFailure> {
        let refused = |error: std::io::Error| {
            RequestFailure::new(FailureKind::Connect, format!("{}: {error}", self.plan.address.authority()))
        };
        let stream = TcpStream::connect_timeout(&self.address, TIMEOUT).map_err(refused)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(refused)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let exchange: Box<dyn Exchange> = match self.plan.protocol {
            Protocol::Http => Box::new(Http1Exchange::new(true)),
            Protocol::Grpc => Box::new(Http2Exchange::new(&self.plan.address.authority(), &self.plan.fields, true)),
        };
        Ok((stream, exchange))
    }
}

fn closed(error: &std::io::Error) -> RequestFailure {
    let is_late = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
    RequestFailure::new(if is_late { FailureKind::Timeout } else { FailureKind::Closed }, error.to_string())
}
