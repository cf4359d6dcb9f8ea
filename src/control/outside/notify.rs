//! Tells the supervisor that started the server about its state: systemd's protocol
//! (`sd_notify(3)`), a datagram of lines to the socket in `NOTIFY_SOCKET`. Without that, nothing is
//! sent. Nothing waits: a supervisor that does not read loses messages. A test that starts a server
//! waits for a file instead.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use crate::log;
use crate::runtime::clock;
use crate::time::Instant;

/// The least time that a shard may stand still before the watchdog is no longer told: each beats
/// four times a second.
const STAND_STILL_MAX: Duration = Duration::from_secs(1);

/// The least time between two messages to a watchdog, whatever its timeout.
const PERIOD_MIN: Duration = Duration::from_millis(10);

/// The supervisor's socket; `None` without one.
#[derive(Debug, Default)]
pub struct ServiceNotifier(Option<UnixDatagram>);

impl ServiceNotifier {
    /// Connects to the supervisor's socket, if there is one. If it cannot be reached, that is
    /// logged as a warning.
    pub fn new(path: Option<&Path>) -> Self {
        let Some(path) = path else { return Self(None) };
        let connect = || {
            let address = match path.as_os_str().as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(path)?,
            };
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.connect_addr(&address)?;
            Ok::<_, std::io::Error>(socket)
        };
        match connect() {
            Ok(socket) => Self(Some(socket)),
            Err(error) => {
                log::warning(&format!("the supervisor is not told what the server does (NOTIFY_SOCKET): {error}"));
                Self(None)
            }
        }
    }

    /// Sends lines such as `READY=1`.
    pub fn tell(&self, lines: &str) {
        if let Some(socket) = &self.0 {
            let _ = socket.send(lines.as_bytes());
        }
    }

    /// A reload begins; [`Self::tell`] with `READY=1` ends it.
    pub fn tell_reloading(&self) {
        let now = Duration::from_nanos(clock::monotonic_at_start()) + clock::now().since(Instant::ZERO);
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
    }
}

/// Writes the file of `--ready-file`, if there is one. The log leaves out its path, which may be
/// private.
pub fn write_ready_file(path: Option<&Path>, text: &str) {
    if let Some(Err(error)) = path.map(|path| std::fs::write(path, text)) {
        log::warning(&format!("--ready-file cannot be written: {error}"));
    }
}

/// The times at which the supervisor's watchdog is told that the server works: as long as the
/// control thread asks, and every shard's tasks run.
#[derive(Debug)]
pub struct Watchdog {
    period: Duration,
    due_at: Instant,
    /// The beats of each shard, and the instant at which they were seen to change.
    beats: Vec<(u64, Instant)>,
}

impl Watchdog {
    /// Creates it for a supervisor that expects a message within `timeout`: it is told twice as
    /// often.
    pub const fn new(timeout: Duration, now: Instant) -> Self {
        let half = timeout.checked_div(2).expect("two is not zero");
        let period = if half.as_nanos() < PERIOD_MIN.as_nanos() { PERIOD_MIN } else { half };
        Self { period, due_at: now, beats: Vec::new() }
    }

    /// Returns the instant at which [`Self::handle_timeout`] must be called.
    pub const fn poll_timeout(&self) -> Instant {
        self.due_at
    }

    /// Checks the beats of the shards so far. If a shard stands still for too long, the supervisor
    /// is not told.
    ///
    /// # Errors
    /// The index of that shard.
    pub fn handle_timeout(&mut self, beats: &[u64], now: Instant) -> Result<(), usize> {
        self.due_at = now + self.period;
        self.beats.resize(beats.len(), (u64::MAX, now));
        for (known, count) in self.beats.iter_mut().zip(beats) {
            if known.0 != *count {
                *known = (*count, now);
            }
        }
        let longest = self.period.max(STAND_STILL_MAX);
        self.beats.iter().position(|(_, changed)| now.since(*changed) >= longest).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_at_a_path_and_at_an_abstract_name() {
        let path = std::env::temp_dir().join(format!("deuteron-notify-{}", std::process::id()));
        let name = format!("deuteron-notify-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, path) in [(by_path, path.clone()), (by_name, Path::new("@").join(&name))] {
            let path = if path.starts_with("@") { std::path::PathBuf::from(format!("@{name}")) } else { path };
            let notifier = ServiceNotifier::new(Some(&path));
            notifier.tell("READY=1\nSTATUS=serving");
            notifier.tell_reloading();
            let mut space = [0; 100];
            let size = socket.recv(&mut space).unwrap();
            assert_eq!(&space[..size], b"READY=1\nSTATUS=serving");
            let size = socket.recv(&mut space).unwrap();
            let text = std::str::from_utf8(&space[..size]).unwrap();
            let micros = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            assert!(micros.parse::<u64>().unwrap() > 0);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_supervisor_that_does_not_read_stops_nobody() {
        let name = format!("deuteron-notify-full-{}", std::process::id());
        let _socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let notifier = ServiceNotifier::new(Some(Path::new(&format!("@{name}"))));
        (0..10_000).for_each(|_| notifier.tell("WATCHDOG=1"));
        let absent = ServiceNotifier::new(Some(Path::new("/nowhere/at/all")));
        absent.tell("READY=1");
        assert!(absent.0.is_none());
    }

    #[test]
    fn the_watchdog_is_told_while_every_shard_beats() {
        let at = |millis: u64| Instant::from_micros(millis * 1_000);
        let mut watchdog = Watchdog::new(Duration::from_secs(4), at(0));
        // Milliseconds, the beats of two shards, and the shard that stands still.
        let script = [
            (0, [0, 0], Ok(())),
            (2_000, [8, 8], Ok(())),
            (4_000, [16, 8], Err(1)),
            (6_000, [24, 8], Err(1)),
            (8_000, [32, 9], Ok(())),
        ];
        for (millis, beats, want) in script {
            assert_eq!(watchdog.poll_timeout(), at(millis));
            assert_eq!(watchdog.handle_timeout(&beats, at(millis)), want, "at {millis} ms");
        }
    }

    #[test]
    fn a_short_watchdog_lets_a_shard_pause_for_a_second() {
        let at = |millis: u64| Instant::from_micros(millis * 1_000);
        let mut watchdog = Watchdog::new(Duration::from_millis(400), at(0));
        let told = (0..=6).map(|turn| watchdog.handle_timeout(&[3], at(turn * 200)).is_ok());
        assert_eq!(told.collect::<Vec<_>>(), [true, true, true, true, true, false, false]);
    }
}
