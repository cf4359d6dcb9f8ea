//! Accepts the connections of a shard, or leaves them to the shard that is to serve them; gives each a slot and serves it in
//! a task of its own. Stops to listen when the server drains.

use std::io::ErrorKind;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;

use crate::connection::tls::TlsConfig;
use crate::limits::{DRAIN_HANDSHAKES, DRAIN_LISTEN};
use crate::metrics::MemoryLoss;
use crate::pressure::MemoryStep;
use crate::protocol::front_end::FrontEnd;
use crate::runtime::clock;
use crate::runtime::executor::{self, Task};
use crate::runtime::socket::{ByteStream, Listener, Socket};
use crate::shard::connections::connection_spread::{
    self, ConnectionInbox, ConnectionPlace, HandedConnection, PlacedConnection,
};
use crate::shard::connections::listener_kind::ListenerKind;
use crate::shard::connections::{ConnectionGuard, Notice, ReservedFor, SlotGrant, SlotKind, SlotRefusal};
use crate::shard::mailbox::ShardMailbox;
use crate::shard::sessions::{metrics_endpoint, session, tls};
use crate::shard::{ListeningSocket, ListeningSockets, Shard};

/// The pause after a failed accept: the usual reason is that all file descriptors are in use, and retrying at once
/// would only take CPU time from the connections that will free some.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections accepted one after another before other requests get their turn.
pub const ACCEPTS_IN_TURN: usize = 32;

/// Makes the listeners of a shard.
///
/// # Errors
/// The system's.
pub fn listen(
    sockets: ListeningSockets,
    write_timeout: Duration,
) -> std::io::Result<Vec<(Rc<Listener>, ListenerKind)>> {
    let ListeningSockets { http, grpc, metrics, admin, sagemaker, vertex_ai } = sockets;
    let of_kind = |sockets: Vec<ListeningSocket>, kind| sockets.into_iter().map(move |socket| (socket, kind));
    let hosting = of_kind(sagemaker, ListenerKind::Hosting(FrontEnd::SageMaker));
    let hosting = hosting.chain(of_kind(vertex_ai, ListenerKind::Hosting(FrontEnd::VertexAi)));
    let all = of_kind(http, ListenerKind::Http).chain(of_kind(grpc, ListenerKind::Grpc));
    let all =
        all.chain(of_kind(metrics, ListenerKind::Metrics)).chain(of_kind(admin, ListenerKind::Admin)).chain(hosting);
    all.map(|(socket, kind)| {
        let listener = Listener::new(socket.descriptor, socket.is_lent, write_timeout)?.in_group(socket.group);
        Ok((Rc::new(listener), kind))
    })
    .collect()
}

impl Shard {
    /// Chooses the shard of a connection that this one has accepted. Returns it if that is this shard, and perhaps
    /// another one that had been handed over to a shard which ended meanwhile. Metrics and the admin socket, which one
    /// shard serves alone, stay.
    fn spread(&self, socket: Socket, kind: ListenerKind) -> Option<PlacedConnection> {
        let mailboxes = &self.server_context.control_link.mailboxes;
        let own = mailboxes.get(self.index).map(ShardMailbox::connections);
        let Some(own) = own.filter(|_| kind.slot() == SlotKind::Client) else { return Some((socket, kind, None)) };
        let chosen = connection_spread::choose(self.index, mailboxes.iter().map(ShardMailbox::connections));
        let Some(mailbox) = mailboxes.get(chosen).filter(|_| chosen != self.index) else {
            return Some((socket, kind, Some(own.enter())));
        };
        let socket = match socket.into_descriptor() {
            Ok(socket) => socket,
            Err(socket) => return Some((socket, kind, Some(own.enter()))),
        };
        match mailbox.push_connection(HandedConnection { socket, kind, place: mailbox.connections().enter() }) {
            Ok(()) => {
                self.cells.clients.handed_over.add(1);
                None
            }
            Err(HandedConnection { socket, kind, .. }) => {
                Some((Socket::from_descriptor(socket).ok()?, kind, Some(own.enter())))
            }
        }
    }

    /// Serves the connections that other shards have handed over.
    pub(in crate::shard) fn admit_arrivals(self: &Rc<Self>) {
        while let Some(HandedConnection { socket, kind, place }) = self.inbox().and_then(ConnectionInbox::poll) {
            match Socket::from_descriptor(socket) {
                Ok(socket) => admit(self, socket, kind, Some(place)),
                Err(error) => (self.server_context.warn)(&format!("a connection was closed: {error}")),
            }
        }
    }

    /// Closes the listeners in three steps. First it goes on accepting for a while, so that load
    /// balancers see the server as not ready instead of refusing connections. Then the kernel
    /// refuses new handshakes at once, and those that have begun are accepted: closing at once
    /// would reset them together with the requests that they carry. A pending accept is never
    /// cancelled, for the ring may already have accepted a connection for it. A socket that another
    /// process keeps, or that another server has taken over, is left as it is.
    pub(in crate::shard) async fn accept_last(
        self: &Rc<Self>,
        listeners: Vec<(Rc<Listener>, ListenerKind)>,
        accepting: Vec<Task<()>>,
    ) {
        let is_handed_over = self.server_context.lifecycle.is_handed_over();
        if !is_handed_over {
            executor::sleep(DRAIN_LISTEN).await;
        }
        let is_left = |listener: &Listener| is_handed_over || listener.is_lent();
        let (left, own): (Vec<_>, Vec<_>) = listeners.iter().partition(|(listener, _)| is_left(listener));
        left.iter().for_each(|(listener, _)| listener.release());
        if !own.is_empty() {
            own.iter().for_each(|(listener, _)| listener.stop_handshakes());
            executor::sleep(DRAIN_HANDSHAKES).await;
            own.iter().for_each(|(listener, _)| listener.stop());
        }
        for task in accepting {
            task.await;
        }
    }
}

/// Accepts connections until the listener is stopped.
pub async fn accept(shard: Rc<Shard>, listener: Rc<Listener>, kind: ListenerKind) {
    let mut count = 0_usize;
    loop {
        match listener.accept().await {
            Ok(socket) => {
                count += 1;
                if count.is_multiple_of(ACCEPTS_IN_TURN) {
                    // Other requests get a turn between new connections.
                    futures_lite::future::yield_now().await;
                }
                if let Some((socket, kind, place)) = shard.spread(socket, kind) {
                    admit(&shard, socket, kind, place);
                }
            }
            // The listener was stopped.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return,
            Err(error) => {
                if shard.connections.is_notice_due(Notice::Accept, clock::now()) {
                    (shard.server_context.warn)(&format!("cannot accept connections for now: {error}"));
                }
                // The usual reason is that all descriptors are in use: an idle connection may hold one.
                if shard.connections.evict(clock::now()) {
                    shard.cells.connections_evicted.add(1);
                }
                executor::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a connection on this shard, in a task of its own; a client's has a place.
fn admit(shard: &Rc<Shard>, socket: Socket, kind: ListenerKind, place: Option<ConnectionPlace>) {
    let Some(connection_guard) = enter(shard, &socket, kind) else { return };
    shard.cells.connections_opened.add(1);
    let clients = u64::from(place.is_some());
    shard.cells.clients.opened.add(clients);
    let shard = Rc::clone(shard);
    executor::spawn(async move {
        let cells = Arc::clone(&shard.cells);
        let session = async {
            match shard.sessions.tls.config(|configs| kind.tls(configs)) {
                None => serve(&shard, socket, kind, &connection_guard).await,
                // Boxed: it is large, and a plain connection should not take its memory.
                Some(config) => Box::pin(serve_tls(&shard, socket, kind, config, &connection_guard)).await,
            }
        };
        // A panic that left the task would end the executor and with it every connection of the shard.
        if AssertUnwindSafe(session).catch_unwind().await.is_err() {
            cells.panics.add(1);
        }
        cells.connections_closed.add(1);
        cells.clients.closed.add(clients);
        drop(place);
    })
    .detach();
}

async fn serve<S: ByteStream>(shard: &Rc<Shard>, socket: S, kind: ListenerKind, connection_guard: &ConnectionGuard) {
    match kind {
        ListenerKind::Admin | ListenerKind::Http | ListenerKind::Grpc => {
            session::run(shard, socket, connection_guard).await
        }
        // Boxed: all tasks of connections are as large as the largest of the two.
        ListenerKind::Metrics => Box::pin(metrics_endpoint::run(shard, socket, connection_guard)).await,
        ListenerKind::Hosting(front_end) => session::run_hosting(shard, socket, connection_guard, front_end).await,
    }
}

async fn serve_tls(
    shard: &Rc<Shard>,
    socket: Socket,
    kind: ListenerKind,
    config: TlsConfig,
    connection_guard: &ConnectionGuard,
) {
    let socket = tls::accept(shard, socket, &config, connection_guard).await;
    drop(config);
    if let Some(socket) = socket {
        serve(shard, socket, kind, connection_guard).await;
    }
}

/// A slot for a new connection; `None` if it is refused. Counts and logs the way in which it was
/// found.
fn enter(shard: &Shard, socket: &Socket, kind: ListenerKind) -> Option<ConnectionGuard> {
    let (now, cells, limits) = (clock::now(), &shard.cells, &shard.server_context.connection_limits);
    let (most, index) = (limits.connections_max, shard.index);
    let say = |notice: Notice, text: &dyn Fn() -> String| {
        if shard.connections.is_notice_due(notice, now) {
            (shard.server_context.warn)(&text());
        }
    };
    let peer = || socket.peer().map(|peer| peer.ip());
    let is_memory_short = shard.server_context.memory.gives_up(MemoryStep::Connections);
    match shard.connections.enter(kind.slot(), peer, is_memory_short, now) {
        Ok((connection_guard, SlotGrant::Free)) => Some(connection_guard),
        Ok((connection_guard, SlotGrant::Evicted(idle))) => {
            cells.connections_evicted.add(1);
            say(Notice::Evicted, &|| {
                let idle = idle.as_secs_f64();
                format!(
                    "shard {index} is at its limit of connections (--connections-max={most}): a new one took the place \
                     of one that was idle for {idle:.1} s"
                )
            });
            Some(connection_guard)
        }
        Ok((connection_guard, SlotGrant::Reserved(ReservedFor::Memory))) => {
            // The thread that measures the memory has logged the reason.
            cells.count_memory_loss(MemoryLoss::NewConnection);
            Some(connection_guard)
        }
        Ok((connection_guard, SlotGrant::Reserved(ReservedFor::Count))) => {
            cells.connections_reserved.add(1);
            say(Notice::Reserved, &|| {
                format!(
                    "shard {index} is at its limit of connections (--connections-max={most}) and none is idle: new \
                     ones are answered all but inference"
                )
            });
            Some(connection_guard)
        }
        Err(SlotRefusal::Address) => {
            cells.connections_refused_by_address.add(1);
            say(Notice::Address, &|| {
                let address =
                    peer().map_or_else(|| "an address that is gone".to_owned(), |address| address.to_string());
                let most = limits.address_connections_max;
                format!(
                    "{address} is at its limit of connections to shard {index} (--connections-per-address-max={most}): \
                     a new one was closed"
                )
            });
            None
        }
        Err(SlotRefusal::Full) if is_memory_short => {
            cells.count_memory_loss(MemoryLoss::NewConnection);
            None
        }
        Err(SlotRefusal::Full) => {
            cells.connections_refused.add(1);
            say(Notice::Full, &|| {
                format!(
                    "shard {index} is at its limit of connections (--connections-max={most}), and those that make room \
                     have not closed yet: a new one was closed"
                )
            });
            None
        }
    }
}
