//! The listening sockets of one address, from the server's start until its shards have them. They
//! are its own, or were opened and passed on by another process. Used by the thread that starts the
//! server; nothing here waits.
//!
//! All shards listen on one address, each on a socket of its own (`SO_REUSEPORT`), and the kernel spreads the connections.
//! That option would also let two servers of one user share a port unasked. So the first socket listens without it, which
//! the kernel grants to one process only, and has it from then on, for the others.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;

/// An address that this process will listen on.
pub struct AddressClaim {
    address: SocketAddr,
    /// The sockets that were passed to this process and listen already, or the first of its own.
    sockets: Vec<Socket>,
    /// True if they came from another process.
    is_passed: bool,
    /// True if that process still has them, and listens on them when this one has ended.
    is_lent: bool,
    is_listening: bool,
}

impl AddressClaim {
    /// Takes an address, on a port that the kernel chooses if it is 0. Does not listen yet: clients
    /// are refused.
    ///
    /// # Errors
    /// `AddrInUse` if another socket listens on it, or the reason why it is not available.
    pub fn new(address: SocketAddr) -> io::Result<Self> {
        let socket = new_socket(address)?;
        socket.bind(&address.into())?;
        let address = internet_address(&socket)?;
        Ok(Self { address, sockets: vec![socket], is_passed: false, is_lent: false, is_listening: false })
    }

    /// Takes sockets that already listen on one address, from a process that ends, or that lends
    /// them and keeps them.
    ///
    /// # Errors
    /// `InvalidInput`, with the reason, if one of them is not a listening TCP socket.
    pub fn of_passed(sockets: Vec<OwnedFd>, is_lent: bool) -> io::Result<Self> {
        let invalid = |text: &str| io::Error::new(ErrorKind::InvalidInput, text.to_owned());
        let sockets: Vec<_> = sockets.into_iter().map(Socket::from).collect();
        let mut address = None;
        for socket in &sockets {
            if !socket.is_listener().unwrap_or(false) {
                return Err(invalid("it is no socket that listens"));
            }
            let own = internet_address(socket).map_err(|_| invalid("it has no internet address"))?;
            if *address.get_or_insert(own) != own {
                return Err(invalid("its address is not that of the others of its name"));
            }
        }
        let address = address.ok_or_else(|| invalid("there is none"))?;
        Ok(Self { address, sockets, is_passed: true, is_lent, is_listening: true })
    }

    /// The address on which it listens, or will.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns true if another process has the same sockets, and keeps them.
    pub const fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Returns the sockets of `count` shards, one list for each, which listen from now on. Each
    /// shard has one or more; if too few were passed, shards share them.
    ///
    /// # Errors
    /// `AddrInUse` if another process was faster.
    pub fn listen(&mut self, count: usize) -> io::Result<Vec<Vec<OwnedFd>>> {
        if self.is_passed {
            return self.deal(count);
        }
        let first = self.sockets.first().ok_or(ErrorKind::NotConnected)?;
        if !self.is_listening {
            // Without SO_REUSEPORT: at most one socket of all that are bound to the address may begin to listen.
            first.listen(BACKLOG)?;
            first.set_reuse_port(true)?;
            self.is_listening = true;
        }
        let mut shards = vec![vec![OwnedFd::from(first.try_clone()?)]];
        while shards.len() < count {
            shards.push(vec![OwnedFd::from(self.listen_beside()?)]);
        }
        Ok(shards)
    }

    /// Returns another socket on the same address, or the first one if the kernel does not allow
    /// it.
    fn listen_beside(&self) -> io::Result<Socket> {
        let beside = || {
            let socket = new_socket(self.address)?;
            socket.set_reuse_port(true)?;
            socket.bind(&self.address.into())?;
            socket.listen(BACKLOG)?;
            Ok(socket)
        };
        beside().or_else(|error: io::Error| match self.sockets.first() {
            Some(first) if first.is_listener().unwrap_or(false) => first.try_clone(),
            _ => Err(error),
        })
    }

    /// Every passed socket must be accepted from, and every shard must accept.
    fn deal(&self, count: usize) -> io::Result<Vec<Vec<OwnedFd>>> {
        let mut shards: Vec<Vec<OwnedFd>> = (0..count).map(|_| Vec::new()).collect();
        for index in 0..count.max(self.sockets.len()) {
            let socket = self.sockets.get(index % self.sockets.len()).ok_or(ErrorKind::NotConnected)?;
            if let Some(shard) = shards.get_mut(index % count.max(1)) {
                shard.push(OwnedFd::from(socket.try_clone()?));
            }
        }
        Ok(shards)
    }
}

fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of an earlier server that are not forgotten yet do not keep the address.
    socket.set_reuse_address(true)?;
    Ok(socket)
}

fn internet_address(socket: &Socket) -> io::Result<SocketAddr> {
    socket.local_addr()?.as_socket().ok_or_else(|| ErrorKind::AddrNotAvailable.into())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn any() -> AddressClaim {
        AddressClaim::new("127.0.0.1:0".parse().unwrap()).unwrap()
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_found_at_once() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert_eq!(AddressClaim::new(address).err().map(|error| error.kind()), Some(ErrorKind::AddrInUse));
        drop(taken);
        AddressClaim::new(address).unwrap();
    }

    #[test]
    fn a_claim_refuses_clients_until_it_listens_and_keeps_its_port_meanwhile() {
        let mut claim = any();
        let address = claim.address();
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let shards = claim.listen(3).unwrap();
        assert_eq!(shards.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
        TcpStream::connect(address).unwrap();
    }

    #[test]
    fn of_two_that_claim_an_address_together_one_listens() {
        for first in [true, false] {
            let mut one = any();
            let mut two = AddressClaim::new(one.address()).unwrap();
            let (winner, loser) = if first { (&mut one, &mut two) } else { (&mut two, &mut one) };
            let held = winner.listen(2).unwrap();
            assert_eq!(loser.listen(2).err().map(|error| error.kind()), Some(ErrorKind::AddrInUse));
            let again = AddressClaim::new(winner.address()).err().map(|error| error.kind());
            assert_eq!((held.len(), again), (2, Some(ErrorKind::AddrInUse)), "and nobody later");
        }
    }

    #[test]
    fn a_wildcard_and_one_of_its_addresses_do_not_share_a_port() {
        let mut all = AddressClaim::new("0.0.0.0:0".parse().unwrap()).unwrap();
        let one = SocketAddr::from(([127, 0, 0, 1], all.address().port()));
        let mut one = AddressClaim::new(one).unwrap();
        let _held = all.listen(2).unwrap();
        assert_eq!(one.listen(1).err().map(|error| error.kind()), Some(ErrorKind::AddrInUse));
    }

    #[test]
    fn those_who_listen_first_can_be_followed_by_others() {
        let mut claim = any();
        let first = claim.listen(1).unwrap();
        let others = claim.listen(2).unwrap();
        drop(first);
        TcpStream::connect(claim.address()).unwrap();
        assert_eq!(others.len(), 2);
    }

    #[test]
    fn passed_sockets_are_dealt_so_that_none_is_left_out() {
        let check = |sockets: usize, shards: usize, want: &[usize]| {
            let mut own = any();
            let passed = own.listen(sockets).unwrap().into_iter().flatten().collect();
            let mut claim = AddressClaim::of_passed(passed, true).unwrap();
            assert_eq!((claim.address(), claim.is_lent()), (own.address(), true));
            let dealt: Vec<_> = claim.listen(shards).unwrap().iter().map(Vec::len).collect();
            assert_eq!(dealt, want, "{sockets} sockets, {shards} shards");
        };
        check(1, 3, &[1, 1, 1]);
        check(3, 3, &[1, 1, 1]);
        check(3, 2, &[2, 1]);
        check(2, 3, &[1, 1, 1]);
    }

    #[test]
    fn what_does_not_listen_is_refused() {
        let refused = |passed: Vec<OwnedFd>| AddressClaim::of_passed(passed, false).err().unwrap().to_string();
        assert_eq!(refused(Vec::new()), "there is none");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(refused(vec![file.into()]), "it is no socket that listens");
        let bound = new_socket("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_eq!(refused(vec![bound.into()]), "it is no socket that listens");
        let local = std::env::temp_dir().join(format!("deuteron-claim-{}", std::process::id()));
        let socket = std::os::unix::net::UnixListener::bind(&local).unwrap();
        std::fs::remove_file(&local).unwrap();
        assert_eq!(refused(vec![socket.into()]), "it has no internet address");
        let pair = [any(), any()].map(|mut claim| claim.listen(1).unwrap().remove(0).remove(0));
        assert_eq!(refused(pair.into()), "its address is not that of the others of its name");
    }
}
