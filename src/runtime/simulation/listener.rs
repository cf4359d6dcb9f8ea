//! Ports of a simulation: clients connect, a shard accepts. The descriptor that a shard is given to listen on names the
//! port and is nothing else.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::runtime::simulation::link::{ClientEnd, LinkRules, SimulatedStream, link};
use crate::runtime::simulation::{current, percent, running};

/// Connections that wait for an accept, and the task that waits for them.
#[derive(Default)]
pub(super) struct Port {
    waiting: RefCell<VecDeque<SimulatedStream>>,
    waker: RefCell<Option<Waker>>,
    is_refusing: Cell<bool>,
    is_stopped: Cell<bool>,
    /// Accepts of a hundred that fail as if no descriptor were left.
    failures: u64,
}

/// A listening socket.
pub struct SimulatedListener(Rc<Port>);

/// Opens the port that a descriptor names; `failures` of a hundred accepts fail.
pub fn open_port(descriptor: RawFd, failures: u64) {
    let port = Rc::new(Port { failures, ..Port::default() });
    running().ports.borrow_mut().insert(descriptor, port);
}

/// Returns the listener of the port that a descriptor names; `None` outside of a simulation.
pub fn listener(descriptor: RawFd) -> Option<SimulatedListener> {
    current()?.ports.borrow().get(&descriptor).map(|port| SimulatedListener(Rc::clone(port)))
}

/// Connects to the port that a descriptor names; `None` if it refuses.
pub fn connect(descriptor: RawFd, number: u16, rules: LinkRules) -> Option<ClientEnd> {
    let port = running().ports.borrow().get(&descriptor).map(Rc::clone)?;
    if port.is_refusing.get() || port.is_stopped.get() {
        return None;
    }
    let (server, client) = link(number, rules);
    port.waiting.borrow_mut().push_back(server);
    port.wake();
    Some(client)
}

impl Port {
    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl SimulatedListener {
    /// Stops taking new connections.
    pub fn stop_handshakes(&self) {
        self.0.is_refusing.set(true);
    }

    /// Ends [`Self::accept`], and resets the connections that wait.
    pub fn stop(&self) {
        self.0.is_stopped.set(true);
        self.0.waiting.take().into_iter().for_each(|stream| stream.reset_at_close());
        self.0.wake();
    }

    /// Returns the next connection.
    ///
    /// # Errors
    /// If it was stopped, or no descriptor is left.
    pub async fn accept(&self) -> io::Result<SimulatedStream> {
        poll_fn(|context| {
            if self.0.is_stopped.get() {
                return Poll::Ready(Err(ErrorKind::InvalidInput.into()));
            }
            if self.0.waiting.borrow().is_empty() {
                *self.0.waker.borrow_mut() = Some(context.waker().clone());
                return Poll::Pending;
            }
            if self.0.failures > 0 && percent(self.0.failures) {
                return Poll::Ready(Err(io::Error::other("no descriptor is left")));
            }
            let accepted = self.0.waiting.borrow_mut().pop_front();
            accepted.iter().for_each(SimulatedStream::handle_accepted);
            accepted.map_or(Poll::Pending, |stream| Poll::Ready(Ok(stream)))
        })
        .await
    }
}
