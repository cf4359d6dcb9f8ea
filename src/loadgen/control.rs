//! Requests outside the load: the model's metadata and configuration, and the server's statistics. Sent one at a time on
//! a blocking connection of their own, over the protocol of the load.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;

use crate::loadgen::description::{DescribedConfig, ModelDescription};
use crate::loadgen::exchange::{Exchange, closed_failure};
use crate::loadgen::failure::{FailureKind, RequestFailure};
use crate::loadgen::new_exchange::new_exchange;
use crate::loadgen::request::{OutgoingRequest, RequestMethod, RequestPlan};
use crate::loadgen::statistics::ServerStatistics;
use crate::loadgen::target::{Encoding, Protocol};
use crate::loadgen::tls::missing_tls;
use crate::wire::json::{Document, JsonValue};

/// Timeout of the connect, and of each read and write.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client for a server's metadata and statistics.
pub struct ControlClient {
    address: SocketAddr,
    plan: RequestPlan,
    connection: Option<(TcpStream, Box<dyn Exchange>)>,
}

impl ControlClient {
    /// A client that connects with its first request.
    pub const fn new(address: SocketAddr, plan: RequestPlan) -> Self {
        Self { address, plan, connection: None }
    }

    /// Describes the model by its metadata, and by its configuration if the server has that extension of Triton.
    ///
    /// # Errors
    /// A line for the user, when the metadata cannot be read.
    pub fn describe(&mut self) -> Result<ModelDescription, String> {
        let answer = self.request(RequestMethod::ModelMetadata).map_err(|failure| failure.to_string())?;
        let mut model = match self.plan.protocol {
            Protocol::Http => ModelDescription::from_json(&answer)?,
            Protocol::Grpc => ModelDescription::from_message(&answer)?,
        };
        model.config = self.request(RequestMethod::ModelConfig).ok().and_then(|answer| match self.plan.protocol {
            Protocol::Http => DescribedConfig::from_json(&answer),
            Protocol::Grpc => DescribedConfig::from_message(&answer),
        });
        Ok(model)
    }

    /// The encoding of tensors over HTTP when no flag sets it: binary, unless the server lists its extensions without
    /// binary data.
    pub fn encoding(&mut self) -> Encoding {
        let answer = self.request(RequestMethod::ServerMetadata).unwrap_or_default();
        let document = Document::parse(&answer, &[]).ok();
        let extensions = document.as_ref().and_then(|document| document.root().get("extensions"));
        let has_binary =
            |list: JsonValue<'_, '_>| list.elements().any(|name| name.as_str() == Some("binary_tensor_data"));
        if extensions.is_none_or(has_binary) { Encoding::Binary } else { Encoding::Json }
    }

    /// The server's counts so far. `None` if it has no statistics.
    pub fn statistics(&mut self) -> Option<ServerStatistics> {
        let answer = self.request(RequestMethod::ModelStatistics).ok()?;
        match self.plan.protocol {
            Protocol::Http => ServerStatistics::from_json(&answer),
            Protocol::Grpc => ServerStatistics::from_message(&answer),
        }
    }

    fn request(&mut self, method: RequestMethod) -> Result<Bytes, RequestFailure> {
        let outgoing = self.plan.control(method);
        let had_connection = self.connection.is_some();
        match self.call(&outgoing) {
            // The server may have closed the idle connection: try once more on a new one.
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
                stream.write_all(bytes).map_err(|error| io_failure(&error))?;
                exchange.handle_sent(size);
            }
            if let Some(finished) = exchange.poll_finished() {
                if !exchange.is_over() {
                    self.connection = Some((stream, exchange));
                }
                return finished.outcome;
            }
            match stream.read(&mut buffer).map_err(|error| io_failure(&error))? {
                0 => {
                    let failure = closed_failure(&*exchange);
                    exchange.handle_end();
                    return exchange.poll_finished().map_or(Err(failure), |finished| finished.outcome);
                }
                size => {
                    let bytes = buffer.get(..size).unwrap_or_default();
                    let missing_tls =
                        if self.plan.tls.is_none() { missing_tls(bytes, self.plan.protocol) } else { None };
                    missing_tls.map_or_else(|| exchange.handle_bytes(bytes), Err)?;
                }
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
        Ok((stream, new_exchange(&self.plan, true)))
    }
}

fn io_failure(error: &std::io::Error) -> RequestFailure {
    let is_late = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
    RequestFailure::new(if is_late { FailureKind::Timeout } else { FailureKind::Closed }, error.to_string())
}
