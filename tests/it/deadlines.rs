//! A server must never be silent on an open connection: a call behind others whose deadlines passed, or that were
//! cancelled at any moment of their lives, is answered, even on an overloaded machine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::grpc::Caller;
use crate::support::over::Over;
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
/// Run time of the model for a batch, in milliseconds. Deadlines of calls that are given up lie around it.
const RUN_MS: u32 = 6;
/// The deadline of a call that is not given up, thousands of times its run: a call that reaches it was forgotten.
const PATIENCE: Duration = Duration::from_secs(20);
const CLIENTS: u64 = 6;
const LOAD_FOR: Duration = Duration::from_secs(4);

fn message() -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 1]);
    Message::new().bytes(1, "slow").message(5, input).bytes(7, [0; 4]).into_bytes()
}

/// Gives up two calls, then makes one that it waits for, until time is up. The deadlines wander over all of a call's life.
async fn client(server: &Server, seed: u64, answered: &AtomicU64, given_up: &AtomicU64) {
    let caller = Caller::connect(server.grpc(), INFER).await;
    let start = Instant::now();
    let mut random = seed;
    while start.elapsed() < LOAD_FOR {
        for _ in 0..2 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let deadline = Duration::from_micros((random >> 33) % (3_000 * u64::from(RUN_MS)));
            let outcome = caller.call(message(), deadline).await;
            given_up.fetch_add(u64::from(outcome.is_err()), Ordering::Relaxed);
        }
        let sent = Instant::now();
        let answer = caller.call(message(), PATIENCE).await;
        assert!(answer.is_ok(), "{:?} after {:?}\n{}", answer.err(), sent.elapsed(), server.log());
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_call_behind_cancelled_ones_is_always_answered() {
    let folder = repository::write(Flavour::Deuteron);
    let path = folder.path().join("slow").join("config.pbtxt");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text.replace("\"300\"", &format!("\"{RUN_MS}\""))).unwrap();
    for io in ["--io=auto", "--io=epoll", "--io=glommio"] {
        let server = Server::deuteron(folder.path(), &["--shards=2", io]);
        let (answered, given_up, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let over = Over(&is_over);
            // The machine is busy beside it: woken threads run late, and at random moments.
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let clients: Vec<_> = (1..=CLIENTS)
                .map(|seed| {
                    let (server, answered, given_up) = (&server, &answered, &given_up);
                    scope.spawn(move || {
                        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                        runtime.block_on(client(server, seed, answered, given_up));
                    })
                })
                .collect();
            let failed = clients.into_iter().filter_map(|client| client.join().err()).count();
            drop(over);
            assert_eq!(failed, 0, "a client was not answered");
        });
        let (answered, given_up) = (answered.into_inner(), given_up.into_inner());
        assert!(answered > 20 && given_up > 20, "{io}: {answered} answered, {given_up} given up");
    }
}
