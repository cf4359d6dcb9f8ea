//! The thread with a connection to Redis, on a scripted peer. `tests/it/redis.rs` has a real one.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::*;
use crate::backend::trial::{spec, tensor};
use crate::model::ModelIdentity;
use crate::model::parameters::Parameters;
use crate::queue::cache_link::{CacheQuestion, LookupLease};
use crate::queue::one_shot::{OneShotReceiver, one_shot};
use crate::tensor::Datatype;

const SOON: Duration = Duration::from_secs(10);

fn model() -> Arc<ModelSpec> {
    let mut spec = spec(0, &[], &[("y", Datatype::Fp32, &[1])]);
    spec.identity = Some(ModelIdentity([1; 32]));
    Arc::new(spec)
}

/// A lookup in the answers of [`model`], and its reply.
fn look(parameter: i64) -> (CacheJob, OneShotReceiver<CacheFinding>) {
    let (reply, awaited) = one_shot(LookupLease);
    let mut parameters = Parameters::default();
    parameters.set("number", model::parameters::ParameterValue::Int64(parameter));
    let question = CacheQuestion { models: vec![model()], inputs: Vec::new(), parameters, outputs: Vec::new() };
    (CacheJob::Look(question, clock::now() + SOON, reply), awaited)
}

/// Returns settings for a peer that runs `serve` for each connection.
fn peer(mut serve: impl FnMut(TcpStream) + Send + 'static) -> RedisSettings {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().for_each(|stream| serve(stream.unwrap())));
    RedisSettings { host: "127.0.0.1".to_owned(), port, ..RedisSettings::default() }
}

/// Answers one command after the other with these, then is silent until the other end closes.
fn answering(mut stream: TcpStream, answers: &[&[u8]]) {
    let mut space = [0; 65536];
    for answer in answers {
        if !matches!(stream.read(&mut space), Ok(1..)) || stream.write_all(answer).is_err() {
            return;
        }
    }
    while matches!(stream.read(&mut space), Ok(1..)) {}
}

fn open(settings: &RedisSettings) -> String {
    match RedisConnection::open(settings) {
        Ok(_) => "open".to_owned(),
        Err(fault @ RedisFault::Refused(_)) => format!("refused: {fault}"),
        Err(fault @ RedisFault::Lost(_)) => format!("lost: {fault}"),
    }
}

#[test]
fn a_connection_is_open_once_redis_has_answered() {
    let check = |answers: &'static [&'static [u8]], want: &str| {
        let settings = peer(move |stream| answering(stream, answers));
        let settings = RedisSettings { connect_timeout: Duration::from_millis(200), database: 3, ..settings };
        assert_eq!(open(&settings), want);
    };
    check(&[b"+OK\r\n", b"+PONG\r\n"], "open");
    check(&[b"-ERR DB index is out of range\r\n"], "refused: ERR DB index is out of range");
    check(&[b"+OK\r\n", b"-NOAUTH Authentication required.\r\n"], "refused: NOAUTH Authentication required.");
    check(&[b"+OK\r\n", b"-LOADING Redis is loading\r\n"], "lost: LOADING Redis is loading");
    check(&[b"+OK\r\n"], "lost: it did not answer in time");
    check(&[b"HTTP/1.1 400 Bad Request\r\n"], "lost: what it sends is not Redis's protocol");
    check(&[b"$-1\r\n"], "lost: what it sends is not Redis's protocol");
    check(&[b"$7\r\n"], "lost: it sent more than was asked for");
    let closing = peer(drop);
    assert!(open(&closing).starts_with("lost: "), "it closes at once");
}

#[test]
fn a_peer_that_sends_a_byte_now_and_then_is_given_up_as_one_that_sends_none() {
    let settings = peer(|mut stream| {
        let mut space = [0; 64];
        let _ = stream.read(&mut space);
        let _ = stream.write_all(b"+PONG\r\n");
        while stream.write_all(b"x").is_ok() {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    });
    let mut connection = RedisConnection::open(&settings).map_err(|fault| fault.to_string()).unwrap();
    let began = clock::now();
    let late = connection.read(0, began + Duration::from_millis(40), |_| ()).unwrap_err();
    // Its bytes are not a reply either, which shows only once a line is whole.
    assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    let took = clock::now().since(began);
    assert!(took >= Duration::from_millis(40) && took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn replies_are_taken_while_commands_are_sent() {
    // Too much for the buffers of both sockets together.
    const SIZE: usize = 32 * 1024 * 1024;
    let command = |words: &[&[u8]]| {
        let mut bytes = Vec::new();
        resp::encode(words, &mut bytes);
        bytes
    };
    let (look, store) = (command(&[b"GET", b"a"]), command(&[b"SET", b"b", &vec![7; SIZE]]));
    let sizes = [look.len(), store.len()];
    // As a proxy with little memory: it takes the next command when the reply to the last one is gone.
    let settings = peer(move |mut stream| {
        let mut take = |size: usize, answer: &[u8]| {
            let mut space = vec![0; size];
            stream.read_exact(&mut space).and_then(|()| stream.write_all(answer))
        };
        let ping = command(&[b"PING"]).len();
        let all = [(ping, b"+PONG\r\n".to_vec()), (sizes[0], bulk(&vec![9; SIZE])), (sizes[1], b"+OK\r\n".to_vec())];
        let _ = all.into_iter().try_for_each(|(size, answer)| take(size, &answer));
    });
    let settings = RedisSettings { lookup_timeout: SOON, ..settings };
    let mut connection = RedisConnection::open(&settings).map_err(|fault| fault.to_string()).unwrap();
    let until = clock::now() + Duration::from_secs(120);
    connection.write([look, store].concat());
    let found = connection.read(SIZE, until, |reply| matches!(reply, RespReply::Bulk(value) if value.len() == SIZE));
    assert!(found.unwrap());
    assert!(connection.read(0, until, |reply| matches!(reply, RespReply::Status(_))).unwrap());
}

/// A running thread with its lane.
fn thread(settings: &RedisSettings) -> Arc<CacheLink> {
    let link = Arc::new(CacheLink::new(CacheKind::Redis, 1, settings.lookup_timeout, settings.wait_timeout));
    let thread = RedisThread {
        settings: settings.clone(),
        lane: Arc::clone(&link.lanes()[0]),
        pauses: PauseLadder::default(),
        is_lost: false,
        connected: None,
    };
    std::thread::spawn(move || thread.run());
    link
}

/// Waits for a lane to take a job: until there is a connection.
fn asked(link: &CacheLink, parameter: i64) -> Result<CacheFinding, Error> {
    let began = clock::now();
    loop {
        let (job, awaited) = look(parameter);
        if link.push(0, clock::now(), job).is_ok() {
            return futures_lite::future::block_on(awaited);
        }
        assert!(clock::now().since(began) < SOON, "there is no connection");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn key(parameter: i64) -> AnswerKey {
    let CacheJob::Look(question, ..) = look(parameter).0 else { unreachable!() };
    cache_entry::key([&*model()].into_iter(), &[], &question.parameters, &[]).unwrap()
}

fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

#[test]
fn answers_come_from_redis_and_what_is_none_is_counted() {
    let outputs = vec![tensor(&[1], &[7_f32])];
    let good = cache_entry::encode(&key(1), &outputs).unwrap();
    let mut cut = good.clone();
    cut.pop();
    let settings = peer(move |stream| {
        let answers: [Vec<u8>; 6] = [
            b"+PONG\r\n".to_vec(),
            bulk(&good),
            b"$-1\r\n".to_vec(),
            bulk(&cut),
            b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n".to_vec(),
            bulk(&good),
        ];
        answering(stream, &answers.each_ref().map(Vec::as_slice));
    });
    let link = thread(&settings);
    assert_eq!(asked(&link, 1), Ok(CacheFinding::Found(outputs)));
    assert_eq!(asked(&link, 1), Ok(CacheFinding::Missing(key(1))));
    for _ in 0..2 {
        assert_eq!(asked(&link, 1), Ok(CacheFinding::Missing(key(1))));
    }
    assert_eq!(asked(&link, 2), Ok(CacheFinding::Missing(key(2))), "the answer to another request");
    let cells = &link.lanes()[0].cells;
    assert_eq!((cells.damaged.get(), cells.connects.get(), cells.connections.get()), (3, 1, 1));
    link.end();
}

#[test]
fn a_redis_that_falls_silent_answers_no_lookup_and_is_connected_to_again() {
    let settings = peer(|stream| drop(std::thread::spawn(move || answering(stream, &[b"+PONG\r\n"]))));
    let settings = RedisSettings { lookup_timeout: Duration::from_millis(20), ..settings };
    let link = thread(&settings);
    let began = clock::now();
    let connects = || link.lanes()[0].cells.connects.get();
    // On a busy machine the thread may reach a lookup after its time is over, and makes no
    // connection for it.
    while connects() < 2 {
        assert_eq!(asked(&link, 1), Err(<LookupLease as queue::one_shot::Lease>::closed()));
        assert!(clock::now().since(began) < Duration::from_secs(20), "{} connections", connects());
    }
    assert!(clock::now().since(began) >= REDIS_PAUSE_MIN, "with a pause before the second");
    link.end();
}

#[test]
fn a_value_larger_than_the_bound_is_neither_stored_nor_read() {
    let lane = CacheLane::default();
    let mut exchange = RedisExchange::default();
    let store = |size: usize| CacheJob::Store(key(1), vec![tensor(&[size as i64], &vec![0_u8; size])]);
    exchange.add(store(CACHE_VALUE_SIZE_MAX), &lane);
    assert_eq!((exchange.commands.len(), lane.cells.stores_failed.get()), (0, 1));
    exchange.add(store(CACHE_VALUE_SIZE_MAX - 1024), &lane);
    assert_eq!((exchange.replies.len(), lane.cells.stores_failed.get()), (1, 1));
    let settings = peer(|stream| {
        let large = format!("${}\r\n", CACHE_VALUE_SIZE_MAX + 1);
        answering(stream, &[b"+PONG\r\n", large.as_bytes()]);
    });
    let link = thread(&settings);
    assert_eq!(asked(&link, 1), Err(<LookupLease as queue::one_shot::Lease>::closed()));
    link.end();
}

#[test]
fn an_exchange_takes_so_many_commands_and_bytes_and_no_lookup_that_is_late() {
    let link = CacheLink::new(CacheKind::Redis, 1, SOON, SOON);
    let lane = &link.lanes()[0];
    lane.set_open(true);
    let mut kept = Vec::new();
    for number in 0..REDIS_COMMANDS_MAX + 1 {
        let (job, awaited) = look(number as i64);
        link.push(0, clock::now(), job).unwrap();
        kept.push(awaited);
    }
    assert_eq!(RedisExchange::gather(lane).replies.len(), REDIS_COMMANDS_MAX);
    assert_eq!(RedisExchange::gather(lane).replies.len(), 1);
    for _ in 0..3 {
        let value = vec![0_u8; REDIS_COMMANDS_SIZE / 2];
        link.push(0, clock::now(), CacheJob::Store(key(1), vec![tensor(&[value.len() as i64], &value)])).unwrap();
    }
    assert_eq!(RedisExchange::gather(lane).replies.len(), 2, "it is full by bytes");
    assert_eq!(RedisExchange::gather(lane).replies.len(), 1);
    let (CacheJob::Look(question, _, reply), awaited) = look(1) else { unreachable!() };
    link.push(0, clock::now(), CacheJob::Look(question, Instant::ZERO, reply)).unwrap();
    assert!(RedisExchange::gather(lane).replies.is_empty());
    assert_eq!(futures_lite::future::block_on(awaited), Ok(CacheFinding::Late));
}

#[test]
fn pauses_double_up_to_the_longest() {
    let mut pauses = PauseLadder::default();
    let millis: Vec<_> = std::iter::repeat_with(|| pauses.next().as_millis()).take(9).collect();
    assert_eq!(millis, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
}
