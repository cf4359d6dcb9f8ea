//! A raw HTTP/1.1 client over one `TcpStream`: it sends bytes as they are and reads one response, so that a test can
//! say exactly what is on the wire.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Silence of a connection after which the test fails.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// One response, its body put together.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The reason phrase.
    pub reason: String,
    /// Names as sent, values without the space around, in order.
    pub headers: Vec<(String, String)>,
    /// The body, chunks joined.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of that name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        header.map(|(_, value)| value.as_str())
    }
}

/// One connection for consecutive requests.
pub struct Connection<S = TcpStream> {
    stream: BufReader<S>,
}

impl Connection {
    /// Connects; every later read and write is bounded in time.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }
}

impl<S: Read + Write> Connection<S> {
    /// Over an existing connection.
    pub fn over(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    /// The stream beneath.
    pub fn stream(&mut self) -> &mut S {
        self.stream.get_mut()
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads the response to a request whose method is not `HEAD`, past any `100 Continue`.
    pub fn receive(&mut self) -> io::Result<Response> {
        self.receive_to("GET")
    }

    /// Reads the response to a request with this method: one to `HEAD` has no body, whatever its head says.
    pub fn receive_to(&mut self, method: &str) -> io::Result<Response> {
        let mut response = self.read_head()?;
        while response.status == 100 {
            response = self.read_head()?;
        }
        if method != "HEAD" && response.status != 204 && response.status != 304 {
            response.body = self.read_body(&response)?;
        }
        Ok(response)
    }

    /// Returns true if the other side has closed and nothing is left to read.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.fill_buf(), Ok([]) | Err(_))
    }

    fn read_head(&mut self) -> io::Result<Response> {
        let status_line = self.read_line()?;
        let mut words = status_line.splitn(3, ' ');
        let version = words.next().unwrap_or_default();
        let status = words.next().and_then(|word| word.parse().ok());
        let (true, Some(status)) = (version.starts_with("HTTP/1."), status) else {
            return Err(io::Error::other(format!("no status line: {status_line:?}")));
        };
        let reason = words.next().unwrap_or_default().to_owned();
        let mut headers = Vec::new();
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                return Ok(Response { status, reason, headers, body: Vec::new() });
            }
            let (name, value) = line.split_once(':').ok_or_else(|| io::Error::other(format!("no header: {line:?}")))?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    fn read_body(&mut self, response: &Response) -> io::Result<Vec<u8>> {
        if response.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            return self.read_chunks();
        }
        let Some(size) = response.header("content-length") else {
            let mut body = Vec::new();
            self.stream.read_to_end(&mut body)?;
            return Ok(body);
        };
        let size = size.parse().map_err(|_| io::Error::other(format!("Content-Length: {size:?}")))?;
        self.read_exact(size)
    }

    fn read_chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.read_line()?;
            let digits = line.split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(digits.trim(), 16)
                .map_err(|_| io::Error::other(format!("chunk size: {line:?}")))?;
            if size == 0 {
                while !self.read_line()?.is_empty() {}
                return Ok(body);
            }
            body.extend(self.read_exact(size)?);
            if !self.read_line()?.is_empty() {
                return Err(io::Error::other("a chunk is longer than its size says"));
            }
        }
    }

    fn read_exact(&mut self, size: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended inside a line"));
        };
        String::from_utf8(line.to_vec()).map_err(io::Error::other)
    }
}

/// A request with the headers that every request needs; `headers` come behind them.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend(format!("{name}: {value}\r\n").into_bytes());
    }
    if !body.is_empty() || method == "POST" {
        bytes.extend(format!("Content-Length: {}\r\n", body.len()).into_bytes());
    }
    bytes.extend(b"\r\n");
    bytes.extend(body);
    bytes
}

/// A request for inference: JSON, and binary data behind it.
pub fn infer_request(model: &str, head: &str, data: &[u8]) -> Vec<u8> {
    let length = head.len().to_string();
    let body = [head.as_bytes(), data].concat();
    request("POST", &format!("/v2/models/{model}/infer"), &[("Inference-Header-Content-Length", &length)], &body)
}

/// A request for `identity_fp32` whose answer has this many bytes of tensor.
pub fn echo_request(size: usize) -> Vec<u8> {
    let head = format!(
        r#"{{"inputs":[{{"name":"INPUT0","shape":[1,{}],"datatype":"FP32","parameters":{{"binary_data_size":{size}}}}}],"parameters":{{"binary_data_output":true}}}}"#,
        size / 4
    );
    infer_request("identity_fp32", &head, &vec![0; size])
}

/// Sends these bytes on a connection of their own and reads one response.
pub fn exchange(address: SocketAddr, request: &[u8]) -> io::Result<Response> {
    let method = request.split(|byte| *byte == b' ').next().unwrap_or_default();
    let mut connection = Connection::open(address)?;
    connection.send(request)?;
    connection.receive_to(&String::from_utf8_lossy(method))
}

/// `GET` on a connection of its own.
pub fn get(address: SocketAddr, path: &str) -> io::Result<Response> {
    exchange(address, &request("GET", path, &[], b""))
}

/// `POST` on a connection of its own.
pub fn post(address: SocketAddr, path: &str, body: &[u8]) -> io::Result<Response> {
    exchange(address, &request("POST", path, &[], body))
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    fn answered(bytes: &'static [u8]) -> io::Result<Response> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(bytes).unwrap();
        });
        let response = get(address, "/");
        server.join().unwrap();
        response
    }

    #[test]
    fn a_body_is_read_by_its_length_by_chunks_or_to_the_end() {
        let check = |bytes: &'static [u8]| assert_eq!(answered(bytes).unwrap().body, b"abcde");
        check(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcdefgh");
        check(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
        check(b"HTTP/1.1 200 OK\r\n\r\nabcde");
        check(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde");
    }

    #[test]
    fn a_response_that_is_cut_off_is_an_error() {
        let check = |bytes: &'static [u8]| assert!(answered(bytes).is_err());
        check(b"");
        check(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcd");
        check(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        check(b"220 mail ready\r\n\r\n");
    }
}
