//! Lower bound of a request's cost: a bare keep-alive echo on the server's own sockets. It reads as many bytes as the
//! request has and answers as many as the server answers, the tensor copied once from the one to the other; of HTTP it
//! knows only the end of the first head.

use std::future::poll_fn;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use deuteron::runtime::executor::{self, IoPath, Runtime};
use deuteron::runtime::ring::spin::Spin;
use deuteron::runtime::socket::{ByteStream, Listener, Socket};

/// The first argument of a process that echoes.
pub const VERB: &str = "echo";

/// An echo in a process of its own, pinned like the server.
pub struct Echo {
    child: Child,
    port: u16,
}

impl Echo {
    /// Starts an echo that answers with a head and the last `tail` bytes of the request.
    pub fn start(port: u16, head: &Path, tail: usize) -> Self {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(env::current_exe().expect("a program has a path"));
        command.args([VERB, &port.to_string()]).arg(head).arg(tail.to_string());
        let child = command.stdin(Stdio::null()).spawn().expect("taskset is installed");
        let echo = Self { child, port };
        while TcpStream::connect(echo.address()).is_err() {
            thread::sleep(Duration::from_millis(10));
        }
        echo
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server's answer up to the first byte of `tail`.
pub fn head_of(server: SocketAddr, request: &[u8], tail: usize) -> Vec<u8> {
    let mut stream = TcpStream::connect(server).expect("the server listens");
    stream.write_all(request).expect("the server reads");
    let mut answer = Vec::new();
    let mut chunk = [0; 65536];
    loop {
        let count = stream.read(&mut chunk).expect("the server answers");
        answer.extend_from_slice(&chunk[..count]);
        let head = size_of(&answer);
        if count == 0 || head.is_some_and(|size| answer.len() >= size) {
            break;
        }
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..answer.len().min(300)]));
    answer.truncate(answer.len() - tail);
    answer
}

/// Runs an echo if the arguments ask for one, and does not return then.
pub fn run_if_asked() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [verb, port, head, tail] = arguments.as_slice() else { return };
    if verb != VERB {
        return;
    }
    let head = fs::read(head).expect("the benchmark wrote it");
    let address = (Ipv4Addr::LOCALHOST, port.parse().expect("a port")).into();
    let tail = tail.parse().expect("a size");
    let runtime = Runtime::new(IoPath::Auto, Spin::Off).expect("the server starts here, too");
    let ended: io::Result<()> = runtime.run(serve(address, head, tail)).and_then(|ended| ended);
    ended.expect("sockets work");
    std::process::exit(0);
}

async fn serve(address: SocketAddr, head: Vec<u8>, tail: usize) -> io::Result<()> {
    let listener = std::net::TcpListener::bind(address)?.into();
    let listener = Listener::new(listener, false, deuteron::limits::WRITE_TIMEOUT)?;
    loop {
        let socket = listener.accept().await?;
        let head = head.clone();
        executor::spawn(async move { drop(echo(socket, &head, tail).await) }).detach();
    }
}

/// One connection: all of its requests have the size of its first.
async fn echo(mut socket: Socket, head: &[u8], tail: usize) -> io::Result<()> {
    let (mut input, mut output) = (vec![0; 16 * 1024], Vec::new());
    let (mut filled, mut size) = (0, None);
    loop {
        while size.is_none_or(|size| filled < size) {
            let space = input.get_mut(filled..).expect("filled ends in the buffer");
            match poll_fn(|context| socket.poll_read(context, space)).await? {
                0 => return Ok(()),
                count => filled += count,
            }
            if size.is_none() {
                size = size_of(&input[..filled]);
                input.resize(size.unwrap_or(filled).max(input.len()), 0);
            }
        }
        let end = size.ok_or(ErrorKind::InvalidData)?;
        poll_fn(|context| socket.poll_written(context)).await?;
        output.clear();
        output.extend_from_slice(head);
        output.extend_from_slice(&input[end - tail..end]);
        filled -= end;
        if !socket.write_behind(&mut output) {
            let mut rest = output.as_slice();
            while !rest.is_empty() {
                let count = poll_fn(|context| socket.poll_write(context, rest)).await?;
                rest = &rest[count..];
            }
        }
    }
}

/// Bytes of the message that begins here, if its head is whole.
fn size_of(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    Some(end + length.unwrap_or(0))
}
