//! A new server takes over the listening sockets of this one, which stay open throughout (SIGUSR2).
//! This one starts the program anew, with its own arguments and variables, and sends it the sockets
//! over a Unix socket that is the new one's standard input. When the new one serves, it says so on
//! that socket, and this one drains; if it ends before, this one goes on as if nothing had
//! happened. At most one at a time.

use std::ffi::OsString;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::control::machine::spawn::spawn;
use crate::error::Error;
use crate::log;
use crate::settings::{EndpointKind, PREDECESSOR};

/// The beginnings of the last message of the sockets, and of the message of a server that serves.
const END: &[u8] = b"end";
const READY: &[u8] = b"ready";
/// Sockets in one message; the kernel takes 253 at most.
const MESSAGE_SOCKETS_MAX: usize = 128;
/// Bytes of a message.
const MESSAGE_SIZE_MAX: usize = 32;

/// A listening socket, its endpoint, and its owner.
#[derive(Debug)]
pub struct PassedSocket {
    /// Its endpoint.
    pub endpoint: EndpointKind,
    /// The listening socket.
    pub descriptor: OwnedFd,
    /// True if a supervisor has it too, and keeps it.
    pub is_lent: bool,
}

/// The end of a hand-over.
#[derive(Debug)]
pub enum HandOverEnd {
    /// The new server ended before it served, or could not be started; the reason.
    Failed(String),
    /// The new server, by its process id, serves on the same sockets.
    Serves(u32),
}

/// The facts that a new server is started with: learned when this one starts, since the program's
/// file may be replaced later.
#[derive(Debug)]
pub struct Successor {
    /// The program's path.
    pub program: PathBuf,
    /// Its arguments, without its name.
    pub arguments: Vec<OsString>,
    /// The listening sockets of this server.
    pub sockets: Vec<PassedSocket>,
}

impl Successor {
    /// Starts the new server and sends it the sockets. Returns its process id; `ended` is called
    /// once, on a thread of its own.
    ///
    /// # Errors
    /// The reason that it cannot be started.
    pub fn start(&self, ended: impl FnOnce(HandOverEnd) + Send + 'static) -> Result<u32, Error> {
        if std::process::id() == 1 {
            return Err(Error::unavailable(
                "it is the first process of its container, and all others end with it: start a new container instead",
            ));
        }
        let failed =
            |error: io::Error| Error::unavailable(format!("cannot start '{}': {error}", self.program.display()));
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed(error.into()))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env(PREDECESSOR, std::process::id().to_string()).stdin(Stdio::from(other));
        let mut child = command.spawn().map_err(failed)?;
        // The child alone holds the other end from now on, so this one notices when it ends.
        drop(command);
        let id = child.id();
        if let Err(error) = send_sockets(&own, &self.sockets) {
            // It has ended already, or is ended before it has begun.
            let _ = child.kill().and_then(|()| child.wait());
            return Err(failed(error));
        }
        spawn("hand-over".to_owned(), move || ended(wait(child, &own)))?;
        Ok(id)
    }
}

/// Asks a server that was started here, and has not ended, to stop.
pub fn stop(id: u32) {
    if let Some(id) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        let _ = kill_process(id, Signal::TERM);
    }
}

/// Waits until the new server serves or has ended.
fn wait(mut child: Child, link: &OwnedFd) -> HandOverEnd {
    let mut space = [0; MESSAGE_SIZE_MAX];
    let size = loop {
        match recv(link, &mut space[..], RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            outcome => break outcome.map_or(0, |(size, _)| size),
        }
    };
    if space.get(..size) == Some(READY) {
        return HandOverEnd::Serves(child.id());
    }
    // It has closed its end; its log has the reason.
    let ended = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    HandOverEnd::Failed(format!("the new server ended before it served ({ended}); its log says why"))
}

/// The old server, as the new one sees it.
#[derive(Debug)]
pub struct Predecessor {
    link: OwnedFd,
    /// Its sockets, which this server listens on.
    pub sockets: Vec<PassedSocket>,
}

impl Predecessor {
    /// Takes the sockets that the server which started this one sends over standard input, which is `/dev/null` then.
    ///
    /// # Errors
    /// `Unavailable` if it sends none.
    pub fn receive() -> Result<Self, Error> {
        let receive = || {
            let link = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
            let nothing = std::fs::File::open("/dev/null")?;
            rustix::stdio::dup2_stdin(&nothing)?;
            let sockets = receive_sockets(&link)?;
            Ok::<_, io::Error>(Self { link, sockets })
        };
        receive().map_err(|error| {
            Error::unavailable(format!("the server that hands its sockets over ({PREDECESSOR}) sends none: {error}"))
        })
    }

    /// Tells it that this server serves: from now on it accepts no further connections, and drains.
    pub fn tell_ready(&self) {
        if let Err(error) = send(&self.link, READY, SendFlags::NOSIGNAL) {
            log::warning(&format!("the server before this one cannot be told that this one serves: {error}"));
        }
    }
}

fn send_sockets(link: &OwnedFd, sockets: &[PassedSocket]) -> io::Result<()> {
    // One message for the sockets of each kind.
    for endpoint in EndpointKind::ALL {
        for is_lent in [false, true] {
            let of_kind: Vec<_> = sockets
                .iter()
                .filter(|socket| socket.endpoint == endpoint && socket.is_lent == is_lent)
                .map(|socket| socket.descriptor.as_fd())
                .collect();
            for some in of_kind.chunks(MESSAGE_SOCKETS_MAX) {
                let text = format!("{} {}", endpoint.name(), if is_lent { "lent" } else { "own" });
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_SOCKETS_MAX))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                if !ancillary.push(SendAncillaryMessage::ScmRights(some)) {
                    return Err(ErrorKind::InvalidInput.into());
                }
                sendmsg(link, &[IoSlice::new(text.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
            }
        }
    }
    send(link, END, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_sockets(link: &OwnedFd) -> io::Result<Vec<PassedSocket>> {
    let mut sockets = Vec::new();
    loop {
        let mut bytes = [0; MESSAGE_SIZE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_SOCKETS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(link, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let text = bytes.get(..received.bytes).unwrap_or_default();
        if text == END {
            return Ok(sockets);
        }
        let kind = std::str::from_utf8(text).ok().and_then(|text| text.split_once(' '));
        let Some((Some(endpoint), lent)) = kind.map(|(name, lent)| (EndpointKind::from_name(name), lent)) else {
            return Err(ErrorKind::InvalidData.into());
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                let passed = |descriptor| PassedSocket { endpoint, descriptor, is_lent: lent == "lent" };
                sockets.extend(descriptors.map(passed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn listener(endpoint: EndpointKind, is_lent: bool) -> (PassedSocket, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        (PassedSocket { endpoint, descriptor: listener.into(), is_lent }, port)
    }

    #[test]
    fn sockets_arrive_with_what_they_are_for() {
        let (one, other) = pair();
        let kinds = [
            (EndpointKind::Metrics, false),
            (EndpointKind::Http, true),
            (EndpointKind::Http, false),
            (EndpointKind::Http, true),
        ];
        let (sockets, ports): (Vec<_>, Vec<_>) =
            kinds.into_iter().map(|(endpoint, lent)| listener(endpoint, lent)).unzip();
        send_sockets(&one, &sockets).unwrap();
        drop(sockets);
        let received = receive_sockets(&other).unwrap();
        let told: Vec<_> = received.iter().map(|socket| (socket.endpoint, socket.is_lent)).collect();
        let want = [
            (EndpointKind::Http, false),
            (EndpointKind::Http, true),
            (EndpointKind::Http, true),
            (EndpointKind::Metrics, false),
        ];
        assert_eq!(told, want);
        let port = |socket: PassedSocket| TcpListener::from(socket.descriptor).local_addr().unwrap().port();
        let received: Vec<_> = received.into_iter().map(port).collect();
        assert_eq!(received, [ports[2], ports[1], ports[3], ports[0]], "they are the same sockets");
    }

    #[test]
    fn more_sockets_than_one_message_holds_arrive_too() {
        let (one, other) = pair();
        let sockets: Vec<_> = (0..MESSAGE_SOCKETS_MAX + 2).map(|_| listener(EndpointKind::Grpc, false).0).collect();
        send_sockets(&one, &sockets).unwrap();
        assert_eq!(receive_sockets(&other).unwrap().len(), MESSAGE_SOCKETS_MAX + 2);
    }

    #[test]
    fn a_link_that_ends_or_says_something_else_has_no_sockets() {
        let (one, other) = pair();
        send(&one, b"ftp own", SendFlags::empty()).unwrap();
        assert_eq!(receive_sockets(&other).unwrap_err().kind(), ErrorKind::InvalidData);
        drop(one);
        assert!(receive_sockets(&other).is_err());
    }

    #[test]
    fn a_program_that_does_not_serve_leaves_all_as_it_was() {
        let started = |program: &str, arguments: &[&str]| {
            let arguments = arguments.iter().map(OsString::from).collect();
            let successor =
                Successor { program: program.into(), arguments, sockets: vec![listener(EndpointKind::Http, false).0] };
            let (sender, ended) = std::sync::mpsc::channel();
            successor.start(move |end| sender.send(end).unwrap()).map(|_| ended.recv().unwrap())
        };
        let HandOverEnd::Failed(why) = started("/bin/sh", &["-c", "sleep 0.1; exit 3"]).unwrap() else {
            panic!("it serves")
        };
        assert!(why.contains("exit status: 3"), "{why}");
        // It answers on its standard input, like a server that serves.
        let HandOverEnd::Serves(id) = started("/bin/sh", &["-c", "printf ready >&0; sleep 0.1"]).unwrap() else {
            panic!("it said that it serves")
        };
        assert!(id > 1);
        assert!(started("/nowhere/deuteron", &[]).unwrap_err().text().contains("/nowhere/deuteron"));
    }
}
