//! Row 23: networks that cut, stall and lose, played by a proxy between client and server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::client::{Dice, echoes_json, nonce, request};
use crate::models::ECHO;
use crate::standard::{Counts, STANDARD, around, metric};
use crate::subject::{PLAIN, Subject};
use crate::support::http::Connection;
use crate::trial::{Played, Trial};
use socket2::SockRef;

/// A fault of the network between client and server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// One byte at a time.
    Bytes,
    /// A pause of 200 ms somewhere.
    Stall,
    /// The client ends its side behind the request.
    HalfClose,
    /// Both sides are reset somewhere within the request.
    Cut,
    /// The client's side is reset when all bytes were sent.
    CutBehind,
}

const WAYS: [Way; 5] = [Way::Bytes, Way::Stall, Way::HalfClose, Way::Cut, Way::CutBehind];

/// Carries connections to the server, with one fault after the other.
struct Proxy {
    address: SocketAddr,
}

impl Proxy {
    fn start(server: SocketAddr, is_over: &'static AtomicBool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        thread::spawn(move || {
            for (index, client) in listener.incoming().enumerate() {
                let (Ok(client), false) = (client, is_over.load(Ordering::SeqCst)) else { break };
                thread::spawn(move || carry(client, server, WAYS[index % WAYS.len()], Dice::new(index as u64)));
            }
        });
        Self { address }
    }
}

/// Carries one connection.
fn carry(mut client: TcpStream, server: SocketAddr, way: Way, mut dice: Dice) {
    let Ok(mut server) = TcpStream::connect(server) else { return };
    let _ = server.set_nodelay(true);
    let (mut from_server, mut to_client) = (server.try_clone().expect("it can"), client.try_clone().expect("it can"));
    let back = thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = from_server.read(&mut piece) {
            if way == Way::Bytes {
                piece[..count].iter().for_each(|byte| drop(to_client.write_all(&[*byte])));
            } else {
                let _ = to_client.write_all(&piece[..count]);
            }
        }
        if !matches!(way, Way::Cut | Way::CutBehind) {
            let _ = to_client.shutdown(Shutdown::Write);
        }
    });
    // Both ends of a connection are reset when the last copy of each socket is closed.
    let cut = |client: &TcpStream, server: &TcpStream| {
        [client, server].iter().for_each(|stream| drop(SockRef::from(*stream).set_linger(Some(Duration::ZERO))));
        let _ = server.shutdown(Shutdown::Read);
    };
    let (mut piece, mut passed) = ([0; 4096], 0);
    let at = 20 + dice.below(150) as usize;
    while let Ok(count @ 1..) = client.read(&mut piece) {
        let is_there = passed <= at && at < passed + count;
        passed += count;
        match way {
            Way::Bytes => piece[..count].iter().for_each(|byte| drop(server.write_all(&[*byte]))),
            Way::Stall if is_there => {
                let _ = server.write_all(&piece[..count / 2]);
                thread::sleep(Duration::from_millis(200));
                let _ = server.write_all(&piece[count / 2..count]);
            }
            Way::Cut if is_there => {
                let _ = server.write_all(&piece[..count / 2]);
                cut(&client, &server);
                break;
            }
            _ => drop(server.write_all(&piece[..count])),
        }
        if way == Way::CutBehind {
            cut(&client, &server);
            break;
        }
    }
    if !matches!(way, Way::Cut | Way::CutBehind) {
        let _ = server.shutdown(Shutdown::Write);
    }
    let _ = back.join();
}

/// Row 23.
pub fn lossy_network(trial: &Trial<'_>) -> Played {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let subject = Subject::start(trial, PLAIN)?;
    let answered_by_model = |it: &Subject| metric(it, "nv_inference_request_success{model=\"echo\"");
    around(trial, &subject, STANDARD, || {
        let proxy = Proxy::start(subject.http, &IS_OVER);
        let (rounds, clients) = (trial.size(20, 200), 8);
        let before = answered_by_model(&subject);
        let (right, cut, wrong) = (Mutex::new(0_u64), Mutex::new(0_u64), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for client in 0..clients {
                let (right, cut, wrong, proxy) = (&right, &cut, &wrong, &proxy);
                scope.spawn(move || {
                    for round in 0..rounds {
                        match through(proxy.address, (client + round) % 2 == 0) {
                            Ok(true) => *right.lock().unwrap() += 1,
                            Ok(false) => *cut.lock().unwrap() += 1,
                            Err(why) => wrong.lock().unwrap().push(why),
                        }
                    }
                });
            }
        });
        let (right, cut, wrong) = (right.into_inner().unwrap(), cut.into_inner().unwrap(), wrong.into_inner().unwrap());
        subject.waits(Duration::from_secs(2), |it| Counts::read(it).in_flight == 0);
        let served = answered_by_model(&subject) - before;
        trial.figure(format!("{right} answered, {cut} cut; the server answered {served}"));
        trial.check(wrong.is_empty(), || format!("{} wrong: {:.300}", wrong.len(), wrong.join("; ")));
        // Two of the five faults cut: all other requests are answered.
        let all = clients * rounds;
        trial.check(right + cut == all && cut <= all * 2 / 5 + 2, || format!("{right} + {cut} of {all}"));
        // A request that was cut behind its last byte may still have been answered.
        trial.check((right..=right + cut).contains(&served), || {
            format!("the server answered {served}, clients have {right}")
        });
        half_closed(trial, &subject);
    });
    narrow(trial);
    Ok(())
}

/// Sends one request through the proxy. Returns true if it was answered, and false if it was cut.
fn through(proxy: SocketAddr, ends_side: bool) -> Result<bool, String> {
    let nonce = nonce();
    let Ok(mut connection) = Connection::open(proxy) else { return Ok(false) };
    if connection.send(&request(ECHO, nonce, "")).is_err() {
        return Ok(false);
    }
    if ends_side {
        let _ = connection.stream().shutdown(Shutdown::Write);
    }
    match connection.receive() {
        Ok(answer) if answer.status == 200 && echoes_json(&answer.body, nonce) => Ok(true),
        Ok(answer) => Err(format!("{} {}", answer.status, answer.body.escape_ascii())),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err("silence".to_owned()),
        Err(_) => Ok(false),
    }
}

/// A client that has ended its side is answered.
fn half_closed(trial: &Trial<'_>, subject: &Subject) {
    let nonce = nonce();
    let outcome = Connection::open(subject.http).and_then(|mut connection| {
        connection.send(&request(ECHO, nonce, ""))?;
        connection.stream().shutdown(Shutdown::Write)?;
        connection.receive()
    });
    let is_answered = outcome.as_ref().is_ok_and(|answer| echoes_json(&answer.body, nonce));
    trial.check(is_answered, || format!("a half-closed connection: {outcome:?}"));
}

/// The same server and clients at 2 Mbit/s: a network of their own, in which this program plays itself.
fn narrow(trial: &Trial<'_>) {
    if !trial.form.is_long || std::env::var_os(INSIDE).is_some() {
        return;
    }
    let program = std::env::current_exe().expect("this program is a file");
    let script = "ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate 2mbit burst 32kb latency 400ms && \
                  { tc qdisc add dev lo parent 1: netem loss 5% 2>/dev/null; exec \"$@\"; }";
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", script, "sh"]).arg(program).arg("23").env(INSIDE, "1").stderr(Stdio::null());
    let output = command.output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    match text.lines().find(|line| line.starts_with("23 ")) {
        Some(line) => {
            let ledger = line.split(": ").nth(1).unwrap_or(line).split(';').take(2).collect::<Vec<_>>().join(";");
            trial.figure(format!("at 2 Mbit/s {ledger}"));
            trial.check(line.contains(" passed: "), || format!("at 2 Mbit/s:\n{text}"));
        }
        None => trial.figure("2 Mbit/s was not tried: no network of our own on this machine"),
    }
}

/// Tells this program that it runs inside the narrow network.
const INSIDE: &str = "TRIALS_NARROW";
