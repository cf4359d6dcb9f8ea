//! A server in a container that forbids io_uring, as the default profiles of container engines do: it serves by epoll
//! and says so.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};

/// Answers `io_uring_setup` (425 on every architecture) with EPERM and lets all else pass.
const PROFILE: [libc::sock_filter; 4] = [
    // The number of the system call is the first field of `seccomp_data`.
    libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
    libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: 425 },
    libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs() },
    libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
];

fn forbid_io_uring() -> io::Result<()> {
    let mut filter = PROFILE;
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    #[expect(unsafe_code, reason = "two prctl(2) that no crate here has")]
    // SAFETY: the program outlives the call, which copies it.
    let outcome = unsafe {
        match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
            0 => libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            failed => failed,
        }
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn server(repository: &std::path::Path, flags: &[&str]) -> (Command, Ports) {
    let ports = Ports::free();
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    command.arg("serve").arg(repository).args(flags).arg("--backend-config=onnxruntime,engine=embedded");
    for (flag, port) in [("--http-port", ports.http), ("--grpc-port", ports.grpc), ("--metrics-port", ports.metrics)] {
        command.arg(flag).arg(port.to_string());
    }
    #[expect(unsafe_code, reason = "the profile must be that of the child alone")]
    // SAFETY: between fork and exec it makes two system calls and allocates nothing.
    unsafe {
        command.pre_exec(forbid_io_uring);
    }
    (command, ports)
}

#[test]
fn no_port_of_a_server_that_loads_is_given_to_another() {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
    let ports = (0..100).map(|_| Ports::free()).flat_map(|ports| [ports.http, ports.grpc, ports.metrics]);
    let ports: std::collections::BTreeSet<u16> = ports.collect();
    assert_eq!(ports.len(), 300, "each once");
    assert!(ports.iter().all(|port| *port < first), "the system gives those of {first} and more to anybody");
}

#[test]
fn a_server_without_io_uring_serves_all_the_same_and_says_by_what() {
    let folder = repository::write(Flavour::Deuteron);
    let (command, ports) = server(folder.path(), &[]);
    let server = Server::start(command, ports);
    let client = crate::support::grpc::Client::new(server.grpc());
    assert_eq!(client.call("/inference.GRPCInferenceService/ServerLive", &[]).unwrap(), [8, 1]);
    let body = r#"{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[1,3],"data":[1,2,3]}]}"#;
    for _ in 0..100 {
        let answer =
            crate::support::http::post(server.http(), "/v2/models/identity_uint8/infer", body.as_bytes()).unwrap();
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    }
    assert!(server.log().contains("epoll"), "{}", server.log());
}

#[test]
fn a_server_that_may_use_nothing_else_says_what_to_do() {
    let folder = repository::write(Flavour::Deuteron);
    let (mut command, _) = server(folder.path(), &["--io=ring"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && text.contains("--io=epoll"), "{text}");
}
