//! The threads with connections to Redis, the response cache that servers share. A thread takes the
//! jobs in its lane (`queue::cache_link`), hashes, sends all of it at once and reads the replies:
//! shards neither hash nor wait for a socket. If Redis is gone, slow or silent, the lane closes;
//! then requests do not ask until it is back (`docs/decisions/0026-redis-over-resp.md`).

mod connection;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use bytes::Bytes;

use crate::control::machine::spawn::spawn;
use crate::control::outside::redis::connection::{RedisConnection, RedisFault};
use crate::error::Error;
use crate::limits::{CACHE_VALUE_SIZE_MAX, REDIS_COMMANDS_MAX, REDIS_COMMANDS_SIZE, REDIS_PAUSE_MIN};
use crate::log;
use crate::model::ModelSpec;
use crate::protocol::cache_entry;
use crate::queue::cache_link::{AnswerKey, CacheFinding, CacheJob, CacheKind, CacheLane, CacheLink, LookupReply};
use crate::runtime::clock;
use crate::settings::{RedisSettings, Settings};
use crate::time::Instant;
use crate::wire::resp::{self, RespReply};

/// The whole time of one exchange with Redis: one that sends a byte now and then is given up too.
const REDIS_EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest: the delay until a Redis that is back is noticed.
const REDIS_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Interval of pings on idle connections: less than timeouts of firewalls and Redis (`timeout`).
const REDIS_PING_INTERVAL: Duration = Duration::from_secs(15);

/// Starts the threads, if Redis is the response cache, and waits for the first connection as long
/// as one may take. Redis that cannot be reached is only warned of: requests do without until it is
/// there.
///
/// # Errors
/// `InvalidArgument` if Redis refuses the login or the database; `Unavailable` when the system
/// refuses a thread.
pub fn start(settings: &Settings) -> Result<Option<Arc<CacheLink>>, Error> {
    let Some(redis) = &settings.cache.redis else { return Ok(None) };
    let link = Arc::new(CacheLink::new(CacheKind::Redis, redis.connections, redis.lookup_timeout, redis.wait_timeout));
    let (connected, first) = channel();
    for (index, lane) in link.lanes().iter().enumerate() {
        let thread = RedisThread {
            settings: redis.clone(),
            lane: Arc::clone(lane),
            pauses: PauseLadder::default(),
            is_lost: false,
            connected: (index == 0).then(|| connected.clone()),
        };
        spawn(format!("redis-{index}"), move || thread.run())?;
    }
    drop(connected);
    let place = place(redis);
    match first.recv_timeout(redis.connect_timeout + FIRST_MARGIN) {
        Ok(Ok(())) => log::info(&format!("the response cache is Redis at {place}")),
        Ok(Err(RedisFault::Refused(why))) => return Err(refusal(&place, &why)),
        Ok(Err(RedisFault::Lost(_))) | Err(RecvTimeoutError::Disconnected) => {}
        Err(RecvTimeoutError::Timeout) => {
            log::warning(&format!("Redis at {place} does not answer yet; requests run without the response cache"));
        }
    }
    Ok(Some(link))
}

/// Connects to the Redis that is the response cache, as a server does, and says for a person what comes of it; `None` if it is
/// not the cache.
///
/// # Errors
/// As [`start`], if Redis refuses the login or the database.
pub fn examine(settings: &Settings) -> Option<Result<String, Error>> {
    let redis = settings.cache.redis.as_ref()?;
    let place = place(redis);
    Some(match RedisConnection::open(redis) {
        Ok(_) => Ok(format!("Redis at {place}: reached")),
        Err(RedisFault::Refused(why)) => Err(refusal(&place, &why)),
        Err(RedisFault::Lost(error)) => Ok(format!(
            "Redis at {place}: cannot be reached: {error}; a server runs without its response cache until it can be"
        )),
    })
}

fn refusal(place: &str, why: &str) -> Error {
    Error::invalid(format!("--cache-config=redis: Redis at {place} refuses this server: {why}"))
}

/// The time that the start waits beyond that of a connection, for the thread's message.
const FIRST_MARGIN: Duration = Duration::from_millis(100);

fn place(settings: &RedisSettings) -> String {
    let RedisSettings { host, port, .. } = settings;
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// One thread and its connection.
struct RedisThread {
    settings: RedisSettings,
    lane: Arc<CacheLane>,
    pauses: PauseLadder,
    /// True if the loss of the connection was logged.
    is_lost: bool,
    /// Receives the outcome of the first attempt.
    connected: Option<Sender<Result<(), RedisFault>>>,
}

impl RedisThread {
    fn run(mut self) {
        self.lane.jobs.set_reader();
        while !self.lane.jobs.is_ending() {
            let fault = match RedisConnection::open(&self.settings) {
                Ok(mut connection) => {
                    self.handle_connected();
                    let outcome = self.serve(&mut connection);
                    self.lane.set_open(false);
                    outcome.err().map(RedisFault::Lost)
                }
                Err(fault) => Some(fault),
            };
            if let Some(fault) = fault {
                self.handle_fault(fault);
                self.pause();
            }
        }
    }

    fn handle_connected(&mut self) {
        self.lane.cells.connects.add(1);
        self.lane.set_open(true);
        if let Some(connected) = self.connected.take() {
            let _ = connected.send(Ok(()));
        }
        if std::mem::take(&mut self.is_lost) {
            log::info(&format!(
                "Redis at {} is back: requests look into the response cache again",
                place(&self.settings)
            ));
        }
    }

    fn handle_fault(&mut self, fault: RedisFault) {
        if !std::mem::replace(&mut self.is_lost, true) {
            let place = place(&self.settings);
            log::warning(&format!("requests run without the response cache: Redis at {place}: {fault}"));
        }
        if let Some(connected) = self.connected.take() {
            let _ = connected.send(Err(fault));
        }
    }

    /// Waits before the next attempt, or until the server ends.
    fn pause(&mut self) {
        let until = clock::now() + self.pauses.next();
        while !self.lane.jobs.is_ending() {
            let left = until.since(clock::now());
            if left.is_zero() {
                return;
            }
            std::thread::park_timeout(left);
        }
    }

    /// Serves the jobs of the lane until the server ends.
    fn serve(&mut self, connection: &mut RedisConnection) -> io::Result<()> {
        let mut idle_since = clock::now();
        while !self.lane.jobs.is_ending() {
            let exchange = RedisExchange::gather(&self.lane);
            let now = clock::now();
            if !exchange.replies.is_empty() {
                self.exchange(connection, exchange, now)?;
                self.pauses = PauseLadder::default();
                idle_since = clock::now();
            } else if now.since(idle_since) >= REDIS_PING_INTERVAL {
                connection.ping(now + REDIS_EXCHANGE_TIMEOUT)?;
                idle_since = clock::now();
            } else {
                std::thread::park_timeout(REDIS_PING_INTERVAL);
            }
        }
        Ok(())
    }

    /// Sends commands and hands on their replies, which come in the same order.
    fn exchange(&self, connection: &mut RedisConnection, exchange: RedisExchange, now: Instant) -> io::Result<()> {
        let until = now + REDIS_EXCHANGE_TIMEOUT;
        connection.write(exchange.commands);
        let cells = &self.lane.cells;
        for expected in exchange.replies {
            match expected {
                ExpectedReply::Answer(key, spec, reply) => {
                    let answer = connection.read(CACHE_VALUE_SIZE_MAX, until, |found| match found {
                        RespReply::Nothing => Ok(None),
                        RespReply::Bulk(value) => {
                            cache_entry::decode(&key, &spec, &Bytes::copy_from_slice(value)).map(Some).ok_or(())
                        }
                        // Such as a value of another kind under our key.
                        RespReply::Failure(_) | RespReply::Integer(_) | RespReply::Status(_) => Err(()),
                    })?;
                    reply.send(Ok(match answer {
                        Ok(Some(outputs)) => CacheFinding::Found(outputs),
                        Ok(None) => CacheFinding::Missing(key),
                        Err(()) => {
                            cells.damaged.add(1);
                            CacheFinding::Missing(key)
                        }
                    }));
                }
                ExpectedReply::Stored => {
                    if !connection.read(0, until, |found| matches!(found, RespReply::Status(_)))? {
                        cells.stores_failed.add(1);
                    }
                }
            }
        }
        Ok(())
    }
}

/// However the thread ends, no request waits for it afterwards.
impl Drop for RedisThread {
    fn drop(&mut self) {
        self.lane.set_open(false);
    }
}

/// Commands that go out at once, and the receiver of each reply.
#[derive(Default)]
struct RedisExchange {
    commands: Vec<u8>,
    replies: Vec<ExpectedReply>,
}

enum ExpectedReply {
    /// A lookup in the answers of this model.
    Answer(AnswerKey, Arc<ModelSpec>, LookupReply),
    /// An answer that is stored.
    Stored,
}

impl RedisExchange {
    /// Takes the jobs that wait in a lane, up to the bounds.
    fn gather(lane: &CacheLane) -> Self {
        let mut exchange = Self::default();
        while exchange.replies.len() < REDIS_COMMANDS_MAX
            && exchange.commands.len() < REDIS_COMMANDS_SIZE
            && let Some(job) = lane.jobs.pop()
        {
            exchange.add(job, lane);
        }
        exchange
    }

    fn add(&mut self, job: CacheJob, lane: &CacheLane) {
        match job {
            CacheJob::Look(_, due, reply) if due <= clock::now() => reply.send(Ok(CacheFinding::Late)),
            CacheJob::Look(question, _, reply) => {
                let models = || question.models.iter().map(|model| &**model);
                let key = cache_entry::key(models(), &question.inputs, &question.parameters, &question.outputs);
                let (Some(key), Some(spec)) = (key, question.models.first()) else {
                    return reply.send(Ok(CacheFinding::Unknown));
                };
                resp::encode(&[b"GET", cache_entry::text(&key).as_bytes()], &mut self.commands);
                self.replies.push(ExpectedReply::Answer(key, Arc::clone(spec), reply));
            }
            CacheJob::Store(key, outputs) => match cache_entry::encode(&key, &outputs) {
                Some(value) if value.len() <= CACHE_VALUE_SIZE_MAX => {
                    resp::encode(&[b"SET", cache_entry::text(&key).as_bytes(), &value], &mut self.commands);
                    self.replies.push(ExpectedReply::Stored);
                }
                _ => lane.cells.stores_failed.add(1),
            },
        }
    }
}

/// The pauses after failures in a row.
#[derive(Default)]
struct PauseLadder {
    last: Duration,
}

impl PauseLadder {
    fn next(&mut self) -> Duration {
        self.last = self.last.saturating_mul(2).clamp(REDIS_PAUSE_MIN, REDIS_PAUSE_MAX);
        self.last
    }
}

#[cfg(test)]
mod tests;
