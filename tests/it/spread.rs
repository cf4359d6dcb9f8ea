//! Connections over the shards: the kernel puts each on a shard by a hash of its addresses, and the server balances
//! them between the shards. On the server as a process, over both protocols and on every kind of sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::folder::Folder;
use crate::support::h2;
use crate::support::http::{self, Connection};
use crate::support::metrics::metric;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

const SHARDS: usize = 4;
/// The preface and SETTINGS without a setting.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[2]}]}"#;
const HANDED_OVER: &str = "deuteron_connections_handed_over_total";

fn server(flags: &[&str]) -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    let flags = [&["--shards=4"], flags].concat();
    let server = Server::deuteron(folder.path(), &flags);
    (folder, server)
}

/// Connections of clients on each shard.
fn by_shard(server: &Server) -> Vec<u64> {
    let name = |shard| format!("deuteron_shard_connections_open{{shard=\"{shard}\"}}");
    (0..SHARDS).map(|shard| metric(server.metrics(), &name(shard))).collect()
}

/// Waits until `count` connections are open, and returns the count of each shard.
fn open(server: &Server, count: usize) -> Vec<u64> {
    let start = Instant::now();
    loop {
        let have = by_shard(server);
        if have.iter().sum::<u64>() == count as u64 {
            return have;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{have:?} are open, not {count}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A connection that was answered, over HTTP/1.1 or HTTP/2 in turn.
fn connect(server: &Server, number: usize) -> TcpStream {
    if number.is_multiple_of(2) {
        let mut connection = Connection::open(server.http()).unwrap();
        connection.send(&http::request("POST", "/v2/models/identity_fp32/infer", &[], BODY)).unwrap();
        assert_eq!(connection.receive().unwrap().status, 200);
        return connection.stream().try_clone().unwrap();
    }
    let mut stream = TcpStream::connect(server.grpc()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(PREFACE).unwrap();
    // Its first frame.
    stream.read_exact(&mut [0; 9]).unwrap();
    stream
}

#[test]
fn sixteen_connections_on_four_shards_leave_none_idle_and_none_crowded() {
    for io in ["--io=auto", "--io=epoll", "--io=glommio"] {
        let (_folder, server) = server(&[io]);
        let mut held: Vec<TcpStream> = Vec::new();
        for round in 0..6 {
            held.extend((held.len()..16).map(|number| connect(&server, number)));
            let have = open(&server, 16);
            assert!(have.iter().all(|count| (2..=6).contains(count)), "{io}, round {round}: {have:?}");
            // For any set that closes, the connections that come instead fill the gaps.
            let mut number = 0;
            held.retain(|_| {
                number += 1;
                (number * 7 + round) % 3 == 0
            });
            open(&server, held.len());
        }
        drop(held);
        open(&server, 0);
        assert_eq!(h2::call(server.grpc(), "/inference.GRPCInferenceService/ServerLive", &[], &[])["grpc-status"], "0");
    }
}

#[test]
fn a_thousand_connections_are_spread_within_a_tenth_and_few_are_handed_over() {
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    let (_folder, server) = server(&[]);
    let mut held: Vec<_> = (0..1_000).map(|number| connect(&server, number)).collect();
    let have = open(&server, 1_000);
    assert!(have.iter().all(|count| (225..=275).contains(count)), "{have:?}");
    let handed_over = metric(server.metrics(), HANDED_OVER);
    assert!((1..400).contains(&handed_over), "{handed_over} were handed over");
    held.truncate(500);
    open(&server, 500);
    held.extend((0..500).map(|number| connect(&server, number)));
    let have = open(&server, 1_000);
    assert!(have.iter().all(|count| (225..=275).contains(count)), "{have:?}");
}

#[test]
fn connections_that_come_one_after_another_stay_where_they_were_accepted() {
    let (_folder, server) = server(&[]);
    for number in 0..200 {
        drop(connect(&server, number));
    }
    open(&server, 0);
    let handed_over = metric(server.metrics(), HANDED_OVER);
    assert!(handed_over < 20, "{handed_over} were handed over, though no shard had anything to do");
}
