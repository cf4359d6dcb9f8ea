//! The sockets that the server listens on: its own, those that a supervisor opened for it, or those
//! of a server that it takes over from.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::control::doctor::AddressFinding;
use crate::control::thread::hand_over::{PassedSocket, Predecessor};
use crate::error::Error;
use crate::limits::BIND_RETRY_MAX;
use crate::log;
use crate::runtime::claim::AddressClaim;
use crate::runtime::{clock, socket};
use crate::server::admin_socket::AdminSocket;
use crate::settings::{EndpointKind, Io, Settings, Supervision};
use crate::shard::{ListeningSocket, ListeningSockets};

/// The first descriptor that a supervisor passes.
const PASSED_FIRST: i32 = 3;
/// The interval at which an address in use is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The addresses of the server, and the server that it takes over from, if there is one.
pub struct Listeners {
    claims: BTreeMap<EndpointKind, AddressClaim>,
    admin: AdminSocket,
    /// Copies of the sockets that the shards listen on.
    copies: Vec<PassedSocket>,
    predecessor: Option<Predecessor>,
}

/// Returns the sockets that a supervisor has opened for this server. Called before anything else is
/// opened, so that no other descriptor has a number of theirs.
pub fn inherit(supervision: &Supervision) -> io::Result<Vec<OwnedFd>> {
    socket::take_inherited(PASSED_FIRST, supervision.passed.len())
}

impl Listeners {
    /// Takes the sockets that others have opened for this server, and claims the other addresses of
    /// the flags. No client is served yet.
    ///
    /// # Errors
    /// `Unavailable` if an address is in use or not available, `InvalidArgument` if a passed socket
    /// cannot be used.
    pub fn claim(
        settings: &Settings,
        supervision: &Supervision,
        inherited: io::Result<Vec<OwnedFd>>,
    ) -> Result<Self, Error> {
        let mut passed: BTreeMap<(EndpointKind, bool), Vec<OwnedFd>> = BTreeMap::new();
        let refused = |error: io::Error| {
            Error::invalid(format!("the sockets that the supervisor passes (LISTEN_FDS) cannot be used: {error}"))
        };
        for (endpoint, descriptor) in supervision.passed.iter().zip(inherited.map_err(refused)?) {
            passed.entry((*endpoint, true)).or_default().push(descriptor);
        }
        let mut predecessor = supervision.has_predecessor.then(Predecessor::receive).transpose()?;
        for socket in predecessor.iter_mut().flat_map(|predecessor| predecessor.sockets.drain(..)) {
            passed.entry((socket.endpoint, socket.is_lent)).or_default().push(socket.descriptor);
        }
        let mut claims = BTreeMap::new();
        let mut admin = AdminSocket::check(settings.admin_socket.as_deref(), &passed)?;
        for ((endpoint, is_lent), descriptors) in passed {
            if endpoint == EndpointKind::Admin {
                admin.take(descriptors, is_lent)?;
                continue;
            }
            if address_of(settings, endpoint).is_none() {
                log::warning(&format!("a socket was passed for {}, which the flags disable", endpoint.name()));
                continue;
            }
            if is_lent && settings.io == Io::Glommio {
                return Err(Error::invalid(
                    "--io=glommio cannot leave the sockets of a supervisor to it: use --io=auto, ring or epoll",
                ));
            }
            let of_name = |error| {
                Error::invalid(format!("the socket that was passed for {} cannot be used: {error}", endpoint.name()))
            };
            claims.insert(endpoint, AddressClaim::of_passed(descriptors, is_lent).map_err(of_name)?);
        }
        for endpoint in EndpointKind::ALL {
            if let (false, Some((address, port))) = (claims.contains_key(&endpoint), address_of(settings, endpoint)) {
                claims.insert(endpoint, claim_address(SocketAddr::new(address, port))?);
            }
        }
        Ok(Self { claims, admin, copies: Vec::new(), predecessor })
    }

    /// Returns the sockets for the shard that listens until the shards do, and leaves them
    /// unchanged for the shards: a client that connects in that moment meets those.
    ///
    /// # Errors
    /// `Unavailable` if another process was faster.
    pub fn listen_first(&mut self) -> Result<ListeningSockets, Error> {
        let mut sockets = self.listen_on_ports(1)?.pop().unwrap_or_default();
        let ListeningSockets { http, grpc, metrics, admin, sagemaker, vertex_ai } = &mut sockets;
        let all = [http, grpc, metrics, admin, sagemaker, vertex_ai].into_iter().flatten();
        all.for_each(|socket| socket.is_lent = true);
        Ok(sockets)
    }

    /// Returns the sockets of `count` shards, which listen from now on.
    ///
    /// # Errors
    /// `Unavailable` if another process was faster.
    pub fn listen(&mut self, count: usize) -> Result<Vec<ListeningSockets>, Error> {
        let mut shards = self.listen_on_ports(count)?;
        if let (Some(socket), Some(shard)) = (self.admin.listen(&mut self.copies)?, shards.first_mut()) {
            shard.admin.push(socket);
        }
        Ok(shards)
    }

    fn listen_on_ports(&mut self, count: usize) -> Result<Vec<ListeningSockets>, Error> {
        let mut shards: Vec<_> = (0..count).map(|_| ListeningSockets::default()).collect();
        self.copies.clear();
        for (endpoint, claim) in &mut self.claims {
            // Only the first shard serves metrics.
            let count = if *endpoint == EndpointKind::Metrics { 1 } else { count };
            let (address, is_lent) = (claim.address(), claim.is_lent());
            let dealt = patiently(address, || claim.listen(count))?;
            let failed = |error: io::Error| Error::unavailable(format!("cannot listen on '{address}': {error}"));
            let mut group = Vec::new();
            for descriptor in dealt.iter().flatten() {
                group.push(descriptor.try_clone().map_err(failed)?);
                let descriptor = descriptor.try_clone().map_err(failed)?;
                self.copies.push(PassedSocket { endpoint: *endpoint, descriptor, is_lent });
            }
            let group: Arc<[OwnedFd]> = group.into();
            for (shard, descriptors) in shards.iter_mut().zip(dealt) {
                let socket = |descriptor| ListeningSocket { descriptor, is_lent, group: Arc::clone(&group) };
                let sockets = descriptors.into_iter().map(socket);
                match endpoint {
                    EndpointKind::Metrics => shard.metrics.extend(sockets),
                    EndpointKind::Grpc => shard.grpc.extend(sockets),
                    EndpointKind::Http => shard.http.extend(sockets),
                    EndpointKind::SageMaker => shard.sagemaker.extend(sockets),
                    EndpointKind::VertexAi => shard.vertex_ai.extend(sockets),
                    EndpointKind::Admin => shard.admin.extend(sockets),
                }
            }
        }
        Ok(shards)
    }

    /// Takes the copies of the sockets that the shards listen on, for a server that takes over from
    /// this one.
    pub fn take_copies(&mut self) -> Vec<PassedSocket> {
        std::mem::take(&mut self.copies)
    }

    /// Removes the file of the admin socket, unless another server has it.
    pub fn end(self, is_handed_over: bool) {
        self.admin.end(is_handed_over);
    }

    /// Tells the server that this one takes over from, if there is one, that this one serves.
    pub fn tell_ready(&self) {
        self.predecessor.iter().for_each(Predecessor::tell_ready);
    }

    /// Returns the addresses of the server as a line of JSON:
    /// `{"pid":7,"http":"127.0.0.1:8000","grpc":…,"metrics":…}`.
    pub fn describe(&self, process: u32) -> String {
        let addresses = self.claims.iter().map(|(endpoint, claim)| {
            let name = endpoint.name();
            format!(",\"{name}\":\"{}\"", claim.address())
        });
        format!("{{\"pid\":{process}{}}}\n", addresses.collect::<String>())
    }

    /// Returns the addresses of the server.
    pub fn addresses(&self) -> Vec<(EndpointKind, SocketAddr)> {
        self.claims.iter().map(|(endpoint, claim)| (*endpoint, claim.address())).collect()
    }

    /// Logs the addresses of the server.
    pub fn log(&self) {
        for (endpoint, service) in [
            (EndpointKind::Grpc, "GRPCInferenceService"),
            (EndpointKind::Http, "HTTPService"),
            (EndpointKind::Metrics, "Metrics Service"),
            (EndpointKind::SageMaker, "Sagemaker HTTPService"),
            (EndpointKind::VertexAi, "Vertex AI HTTPService"),
        ] {
            if let Some(claim) = self.claims.get(&endpoint) {
                log::info(&format!("Started {service} at {}", claim.address()));
            }
        }
        self.admin.log();
    }
}

/// Claims each address of the flags, as a server does, and gives it up: for `deuteron doctor`.
pub fn examine(settings: &Settings) -> Vec<AddressFinding> {
    let mut found = Vec::new();
    for endpoint in EndpointKind::ALL {
        let (service, flags) = match endpoint {
            EndpointKind::Http => ("HTTP", "--http-port, --http-address"),
            EndpointKind::Grpc => ("gRPC", "--grpc-port, --grpc-address"),
            EndpointKind::Metrics => ("metrics", "--metrics-port, --metrics-address"),
            EndpointKind::SageMaker => ("SageMaker", "--sagemaker-port, --sagemaker-address"),
            EndpointKind::VertexAi => ("Vertex AI", "--vertex-ai-port, --vertex-ai-address"),
            EndpointKind::Admin => ("admin", "--admin-socket"),
        };
        let mut add = |address: String, outcome| found.push(AddressFinding { service, flags, address, outcome });
        if let Some((address, port)) = address_of(settings, endpoint) {
            let address = SocketAddr::new(address, port);
            add(address.to_string(), claim_address(address).map(drop));
        }
        if let (EndpointKind::Admin, Some(path)) = (endpoint, settings.admin_socket.as_deref()) {
            let outcome = AdminSocket::check(Some(path), &BTreeMap::new()).map(drop);
            add(path.display().to_string(), outcome);
        }
    }
    found
}

/// Claims an address for this process.
fn claim_address(address: SocketAddr) -> Result<AddressClaim, Error> {
    patiently(address, || AddressClaim::new(address))
}

fn address_of(settings: &Settings, endpoint: EndpointKind) -> Option<(IpAddr, u16)> {
    match endpoint {
        EndpointKind::Grpc => settings.grpc,
        EndpointKind::Http => settings.http,
        EndpointKind::Metrics => settings.metrics,
        EndpointKind::SageMaker => settings.foreign.sagemaker.endpoint(),
        EndpointKind::VertexAi => settings.foreign.vertex_ai.endpoint(),
        EndpointKind::Admin => None,
    }
}

/// Retries for a while if the address is in use: a process that was killed leaves its sockets to a
/// kernel that takes milliseconds to close them.
fn patiently<T>(address: SocketAddr, mut attempt: impl FnMut() -> io::Result<T>) -> Result<T, Error> {
    let give_up_at = clock::now() + BIND_RETRY_MAX;
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                return Err(Error::unavailable(format!("cannot listen on '{address}': {error}")));
            }
            Err(_) if clock::now() >= give_up_at => {
                return Err(Error::unavailable(format!("Socket '{address}' already in use")));
            }
            Err(_) => std::thread::park_timeout(RETRY_INTERVAL),
        }
    }
}
