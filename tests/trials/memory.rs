//! Row 26: a ceiling on memory, and many requests beneath it. And the mixed load of that row and of the soak.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Asker, Outcome, echoes_json, nonce, request};
use crate::models::ECHO;
use crate::standard::{Around, STANDARD, around};
use crate::subject::{OWN, Subject, Wish};
use crate::support::http::{self, Connection};
use crate::trial::{NotApplicable, Played, Trial, mib};
use crate::{floods, leaving, values};

/// Memory below the ceiling, above the server's own.
const HEADROOM: i64 = 64 << 20;

/// A control group of the trial, removed when dropped. Both versions of the kernel's interface.
struct Group {
    path: PathBuf,
    limit: &'static str,
}

impl Group {
    fn new() -> Option<Self> {
        let name = format!("trials-{}", std::process::id());
        let first = Path::new("/sys/fs/cgroup/memory");
        let (path, limit) = match first.is_dir() {
            true => (first.join(name), "memory.limit_in_bytes"),
            false => (Path::new("/sys/fs/cgroup").join(name), "memory.max"),
        };
        fs::create_dir(&path).ok()?;
        let group = Self { path, limit };
        // Without the controller the file does not exist.
        group.path.join(limit).exists().then_some(group)
    }

    fn set(&self, bytes: i64) -> bool {
        fs::write(self.path.join(self.limit), bytes.to_string()).is_ok()
    }

    /// Number of kills by the kernel for want of memory.
    fn kills(&self) -> u64 {
        let files = ["memory.oom_control", "memory.events"].map(|name| fs::read_to_string(self.path.join(name)));
        let text = files.into_iter().flatten().collect::<Vec<_>>().join("\n");
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            // The group is busy until the server's process is gone.
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

const TIMERS: [&str; 4] =
    ["--http-head-timeout=3", "--http-body-timeout=3", "--http-write-timeout=3", "--http-idle-timeout=10"];

/// Row 26.
pub fn memory_ceiling(trial: &Trial<'_>) -> Played {
    let Some(group) = Group::new() else {
        return Err(NotApplicable("no control group can be made here".to_owned()));
    };
    // Once without a ceiling, to learn its own memory.
    let wish = Wish { deuteron: &TIMERS, ..OWN };
    let mut free = Subject::start(trial, wish)?;
    let own = free.resident();
    let _ = free.stop();
    drop(free);
    if !group.set(own + HEADROOM) {
        return Err(NotApplicable("the ceiling of a control group cannot be set here".to_owned()));
    }
    let shell = format!("echo $$ > {}/cgroup.procs", group.path.display());
    let subject = Subject::start(trial, Wish { shell: &shell, ..wish })?;
    around(trial, &subject, Around { is_once: true, ..STANDARD }, || {
        let mixed = mix(&subject, trial.size(Duration::from_secs(3), Duration::from_secs(25)));
        trial.figure(format!("mixed load: {mixed}"));
        trial.check(mixed.lost.load(Ordering::SeqCst) == 0, || format!("mixed load: {mixed}"));
        let requests = trial.size(20_000, 1_000_000);
        let warm = pipelined(&subject, requests / 10);
        thread::sleep(trial.size(Duration::from_millis(100), Duration::from_secs(4)));
        let resident = subject.resident();
        let answered = warm + pipelined(&subject, requests);
        thread::sleep(trial.size(Duration::from_millis(100), Duration::from_secs(4)));
        let grown = subject.resident() - resident;
        trial.figure(format!("{answered} small requests: {} under {} of headroom", mib(grown), mib(HEADROOM)));
        trial.check(answered == requests + requests / 10, || format!("{answered} small ones were answered"));
        trial.check(grown <= trial.size(8 << 20, 1 << 20), || format!("{} in {requests} requests", mib(grown)));
    });
    trial.check(group.kills() == 0, || format!("the kernel killed {} times", group.kills()));
    Ok(())
}

/// Sends `count` small requests on one connection, 50 at a time. Returns the number of right answers.
fn pipelined(subject: &Subject, count: usize) -> usize {
    const AT_A_TIME: usize = 50;
    let Ok(mut connection) = Connection::open(subject.http) else { return 0 };
    let mut right = 0;
    for _ in 0..count.div_ceil(AT_A_TIME) {
        let nonces: Vec<u64> = (0..AT_A_TIME).map(|_| nonce()).collect();
        let bytes: Vec<u8> = nonces.iter().flat_map(|nonce| request(ECHO, *nonce, "")).collect();
        if connection.send(&bytes).is_err() {
            break;
        }
        for nonce in nonces {
            match connection.receive() {
                Ok(answer) if answer.status == 200 && echoes_json(&answer.body, nonce) => right += 1,
                _ => return right,
            }
        }
    }
    right
}

/// Outcome of a mixed load.
#[derive(Default)]
pub struct Mixed {
    answered: AtomicU64,
    refused: AtomicU64,
    /// No answer and no refusal, or a wrong answer.
    pub lost: AtomicU64,
    bombs: AtomicU64,
    left: AtomicU64,
    floods: AtomicU64,
}

impl std::fmt::Display for Mixed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = [&self.answered, &self.refused, &self.lost, &self.left, &self.bombs, &self.floods];
        let [answered, refused, lost, left, bombs, floods] = counts.map(|count| count.load(Ordering::Relaxed));
        write!(f, "{answered} answered, {refused} refused, {lost} lost, {left} left, {bombs} bombs, {floods} floods")
    }
}

/// Requests, hang-ups, slow clients, bombs, wrong values and floods at once, for this time.
pub fn mix(subject: &Subject, time: Duration) -> Mixed {
    let mixed = Mixed::default();
    mix_into(subject, time, &mixed, &AtomicBool::new(false));
    mixed
}

/// The same, which can be ended early, and whose counts can be read meanwhile.
pub fn mix_into(subject: &Subject, time: Duration, mixed: &Mixed, is_over: &AtomicBool) {
    let start = Instant::now();
    let goes_on = || start.elapsed() < time && !is_over.load(Ordering::SeqCst);
    let add = |count: &AtomicU64| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        for index in 0..4 {
            scope.spawn(move || {
                let mut asker = Asker::new(subject, ECHO);
                while goes_on() {
                    match asker.ask(index % 2 == 0) {
                        Outcome::Answered => add(&mixed.answered),
                        Outcome::Refused(code, _) if code.is_busy() => add(&mixed.refused),
                        other => {
                            eprintln!("mixed load: {other:?}");
                            add(&mixed.lost);
                        }
                    }
                    thread::sleep(Duration::from_millis(10));
                }
            });
        }
        scope.spawn(move || {
            while goes_on() {
                leaving::leave_all(subject, 20, Duration::from_millis(100));
                mixed.left.fetch_add(20, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(400));
            }
        });
        scope.spawn(move || {
            while goes_on() {
                let held: Vec<Connection> = (0..30).filter_map(|_| Connection::open(subject.http).ok()).collect();
                hold_and_drip(held, Duration::from_secs(4), &goes_on);
            }
        });
        scope.spawn(move || {
            while goes_on() {
                values::send_each(subject, |_| add(&mixed.bombs), &goes_on);
            }
        });
        scope.spawn(move || {
            while goes_on() {
                floods::reset_some(subject);
                add(&mixed.floods);
                thread::sleep(Duration::from_millis(500));
            }
        });
    });
}

/// Half of the connections begin a head, half ask for 1 MB and do not read.
fn hold_and_drip(mut held: Vec<Connection>, time: Duration, goes_on: &impl Fn() -> bool) {
    let (start, large) = (Instant::now(), http::echo_request(1 << 20));
    for (index, connection) in held.iter_mut().enumerate() {
        let _ = connection.stream().set_write_timeout(Some(Duration::from_millis(200)));
        let _ = connection.send(if index % 2 == 0 { b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " } else { &large });
    }
    while start.elapsed() < time && goes_on() {
        held.iter_mut().step_by(2).for_each(|connection| drop(connection.stream().write(b"a")));
        thread::sleep(Duration::from_millis(200));
    }
}
