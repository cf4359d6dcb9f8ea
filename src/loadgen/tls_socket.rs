//! A blocking connection of the commands that ask a server once, over HTTP/1.1 and with TLS if the address has it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::connection::tls::{TlsClient, TlsClientConfig};
use crate::loadgen::settings::TlsFiles;
use crate::loadgen::target::Protocol;
use crate::loadgen::tls::{fault_text, missing_tls};
use crate::loadgen::trust;

/// Bytes of a read from the socket.
const READ_SIZE: usize = 16 * 1024;
/// Bytes of plaintext that are encoded at once.
const PLAIN_SIZE_MAX: usize = 256 * 1024;

/// The TLS of a command; without it, connections are plain.
#[derive(Debug, Default)]
pub struct CommandTls(Option<TlsClientConfig>);

impl CommandTls {
    /// Reads the files for a server, `HOST:PORT`.
    ///
    /// # Errors
    /// A line for a person: a file cannot be read or used, or the host cannot be in a certificate.
    pub fn open(files: &TlsFiles, authority: &str) -> Result<Self, String> {
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        trust::open(files, host, Protocol::Http).map(|config| Self(Some(config)))
    }
}

/// A connection. Its errors say what to do where TLS or its absence is the reason.
#[derive(Debug)]
pub struct CommandSocket {
    stream: TcpStream,
    session: Option<TlsClient>,
    /// Plaintext that was received and not yet read.
    plain: Vec<u8>,
    /// True once the server has sent something.
    has_received: bool,
}

impl CommandSocket {
    /// Connects to `HOST:PORT`, with the handshake of TLS. `connect` bounds each step of that, and `wait` each later read and
    /// write.
    ///
    /// # Errors
    /// That of the last address that was tried, or of the handshake.
    pub fn connect(authority: &str, tls: &CommandTls, connect: Duration, wait: Duration) -> io::Result<Self> {
        let mut failure = io::Error::from(ErrorKind::AddrNotAvailable);
        for address in authority.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, connect) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let session = tls.0.as_ref().map(TlsClient::new);
                    let mut socket = Self { stream, session, plain: Vec::new(), has_received: false };
                    socket.set_timeout(connect)?;
                    socket.shake_hands()?;
                    socket.set_timeout(wait)?;
                    return Ok(socket);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))?;
        self.stream.set_write_timeout(Some(timeout))
    }

    fn shake_hands(&mut self) -> io::Result<()> {
        loop {
            self.send_records()?;
            if !self.session.as_ref().is_some_and(TlsClient::is_handshaking) {
                return Ok(());
            }
            if self.receive_records()? == 0 {
                let text = "the server closed the connection in the handshake of TLS";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
            }
        }
    }

    /// Sends the records that TLS has ready.
    fn send_records(&mut self) -> io::Result<()> {
        let mut records = Vec::new();
        if let Some(session) = &mut self.session {
            session.take_output(&mut records);
        }
        self.stream.write_all(&records)
    }

    /// Receives records, and keeps their plaintext. Returns their size.
    fn receive_records(&mut self) -> io::Result<usize> {
        let mut space = [0; READ_SIZE];
        let size = self.stream.read(&mut space)?;
        if let Some(session) = &mut self.session {
            let outcome = session.handle_input(space.get(..size).unwrap_or_default(), &mut self.plain);
            // An alert, which the server may no longer read.
            let sent = self.send_records();
            outcome.map_err(|fault| io::Error::new(ErrorKind::InvalidData, fault_text(&fault, Protocol::Http)))?;
            sent?;
        }
        Ok(size)
    }
}

impl Read for CommandSocket {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        if self.session.is_none() {
            let size = self.stream.read(space)?;
            let first = space.get(..size).filter(|_| !std::mem::replace(&mut self.has_received, true));
            return match first.and_then(|first| missing_tls(first, Protocol::Http)) {
                Some(failure) => Err(io::Error::new(ErrorKind::InvalidData, failure.text)),
                None => Ok(size),
            };
        }
        while self.plain.is_empty() {
            if self.receive_records()? == 0 {
                return Ok(0);
            }
        }
        let size = self.plain.as_slice().read(space)?;
        self.plain.drain(..size);
        Ok(size)
    }
}

impl Write for CommandSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else { return self.stream.write(bytes) };
        let part = bytes.get(..PLAIN_SIZE_MAX).unwrap_or(bytes);
        session.encode_plain(part);
        self.send_records()?;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
