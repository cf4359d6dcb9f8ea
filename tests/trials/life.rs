//! Rows 7 to 9: the end of a server, models that change, and a server that is killed.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{echoes_json, nonce, percentile, request};
use crate::models::{SLOW, VERSIONED};
use crate::standard::{STANDARD, around};
use crate::subject::{OWN, Subject, Wish};
use crate::support::http::{self, Connection};
use crate::support::over::Over;
use crate::support::server::Server;
use crate::trial::{Played, Trial, ms};

/// Observations of the clients of a server that ends.
#[derive(Default)]
struct LastAnswers {
    answered: u64,
    refused: u64,
    lost: Vec<String>,
    last: Option<Instant>,
}

/// Row 7.
pub fn sigterm_under_load(trial: &Trial<'_>) -> Played {
    let mut subject = Subject::start(trial, OWN)?;
    let (is_told, is_gone, seen) = (AtomicBool::new(false), AtomicBool::new(false), Mutex::new(LastAnswers::default()));
    let (ready, ended) = thread::scope(|scope| {
        let _gone = Over(&is_gone);
        for _ in 0..16 {
            scope.spawn(|| {
                let mut comes_again = true;
                while comes_again && !is_gone.load(Ordering::SeqCst) {
                    comes_again = ask_until_refused(&subject, &is_told, &seen);
                }
            });
        }
        let mut probe = Connection::open(subject.http).expect("the server listens");
        thread::sleep(trial.size(Duration::from_millis(500), Duration::from_millis(1_500)));
        is_told.store(true, Ordering::SeqCst);
        subject.signal("TERM");
        thread::sleep(Duration::from_millis(20));
        let asked = probe.send(&http::request("GET", "/v2/health/ready", &[], b""));
        let ready = asked.and_then(|()| probe.receive()).map(|answer| answer.status);
        // This look does not reap the process: the server is waited for below.
        subject.waits(Duration::from_secs(40), |it| !it.is_running());
        (ready, Instant::now())
    });
    let status = subject.server.as_mut().map(Server::wait);
    let seen = seen.into_inner().expect("no client panics");
    let took = ended - seen.last.unwrap_or(ended);
    let mut idle = Subject::start(trial, OWN)?;
    let start = Instant::now();
    let idle_status = idle.stop();
    let idle_took = start.elapsed();
    trial.figure(format!(
        "{} answered, {} refused, {} lost, end {} behind the last answer, idle end {}",
        seen.answered,
        seen.refused,
        seen.lost.len(),
        ms(took),
        ms(idle_took)
    ));
    trial.check(seen.lost.is_empty(), || format!("{} lost: {:.300}", seen.lost.len(), seen.lost.join("; ")));
    trial.check(seen.answered >= 16, || format!("{} were answered", seen.answered));
    trial.check(!matches!(ready, Ok(200)), || "it says that it is ready".to_owned());
    for status in [status, idle_status] {
        trial.check(status.is_some_and(|status| status.success()), || format!("it ended with {status:?}"));
    }
    trial.within("the end behind the last answer", took, Duration::from_secs(1), Duration::from_secs(5));
    trial.within("the end of an idle server", idle_took, Duration::from_millis(200), Duration::from_secs(2));
    Ok(())
}

/// Asks on one connection as long as it is kept. Returns true if the client should connect again. A client that has
/// sent a whole request must be answered; new connections are refused once the server was told to end.
fn ask_until_refused(subject: &Subject, is_told: &AtomicBool, seen: &Mutex<LastAnswers>) -> bool {
    let is_told = || is_told.load(Ordering::SeqCst);
    let lost = |text: String| seen.lock().expect("no client panics").lost.push(text);
    let mut connection = match Connection::open(subject.http) {
        Ok(connection) => connection,
        Err(error) => {
            if !is_told() {
                lost(format!("no connection before the end: {error}"));
            }
            seen.lock().expect("no client panics").refused += 1;
            return false;
        }
    };
    for index in 0.. {
        let nonce = nonce();
        let sent = connection.send(&request(SLOW, nonce, ""));
        match sent.and_then(|()| connection.receive()) {
            Ok(answer) if answer.status == 200 && echoes_json(&answer.body, nonce) => {
                let mut seen = seen.lock().expect("no client panics");
                seen.answered += 1;
                seen.last = Some(Instant::now());
                if answer.header("Connection").is_some_and(|value| value == "close") {
                    return true;
                }
            }
            Ok(answer) if answer.status == 503 && is_told() => {
                seen.lock().expect("no client panics").refused += 1;
                return false;
            }
            Ok(answer) => lost(format!("{} {}", answer.status, answer.body.escape_ascii())),
            // Never accepted: the kernel resets a connection made a moment before the listener closed.
            Err(error) if index == 0 && is_told() && error.kind() == ErrorKind::ConnectionReset => {
                seen.lock().expect("no client panics").refused += 1;
                return true;
            }
            // A kept connection may be closed while it is idle: the next request on it was never read.
            Err(error) if index > 0 && is_told() && is_closed(&error) => return true,
            Err(error) => {
                lost(format!("request {index}: {error}"));
                return !is_told();
            }
        }
    }
    false
}

fn is_closed(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// Row 8.
pub fn hot_reload(trial: &Trial<'_>) -> Played {
    const EXPLICIT: [&str; 2] = ["--model-control-mode=explicit", "--load-model=*"];
    let subject = Subject::start(trial, Wish { deuteron: &EXPLICIT, triton: &EXPLICIT, ..OWN })?;
    let Some(repository) = &subject.repository else { return Ok(()) };
    let model = repository.path().join(VERSIONED);
    around(trial, &subject, crate::standard::Around { is_once: true, ..STANDARD }, || {
        let (is_over, versions) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let failures = Mutex::new(Vec::new());
        let pause = Duration::from_millis(trial.size(20, 8));
        let (loaded, broken) = thread::scope(|scope| {
            let _over = Over(&is_over);
            for _ in 0..4 {
                scope.spawn(|| ask_versions(&subject, pause, &is_over, &versions, &failures));
            }
            thread::sleep(trial.size(Duration::from_millis(300), Duration::from_secs(3)));
            copy_version(&model);
            let loaded = load(&subject);
            thread::sleep(trial.size(Duration::from_millis(300), Duration::from_secs(3)));
            fs::write(model.join("config.pbtxt"), "backend: \"none\" max_batch_size: -7 {")
                .expect("the folder is ours");
            let broken = load(&subject);
            thread::sleep(trial.size(Duration::from_millis(300), Duration::from_secs(3)));
            (loaded, broken)
        });
        let (versions, failures) =
            (versions.into_inner().unwrap_or_default(), failures.into_inner().unwrap_or_default());
        let count = versions.iter().map(|seen: &Vec<u64>| seen.len()).sum::<usize>();
        let is_ordered = versions.iter().all(|seen| seen.is_sorted() && seen.last() == Some(&2));
        trial.figure(format!(
            "{count} answered, {} failed, load {}, broken load {}",
            failures.len(),
            loaded.0,
            broken.0
        ));
        trial.check(failures.is_empty(), || format!("{} failed: {:.300}", failures.len(), failures.join("; ")));
        trial.check(is_ordered, || "the version does not move from 1 to 2 once".to_owned());
        trial.check(loaded.0 == 200, || format!("the load: {loaded:?}"));
        trial.check(broken.0 >= 400 && broken.1.len() > 20, || format!("the load of a broken model: {broken:?}"));
    });
    Ok(())
}

/// Asks on a connection until told to stop. Returns the version of each answer in order.
fn ask_versions(
    subject: &Subject,
    pause: Duration,
    is_over: &AtomicBool,
    versions: &Mutex<Vec<Vec<u64>>>,
    failures: &Mutex<Vec<String>>,
) {
    let Ok(mut connection) = Connection::open(subject.http) else { return };
    let mut seen = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        let nonce = nonce();
        let answer = connection.send(&request(VERSIONED, nonce, "")).and_then(|()| connection.receive());
        match answer {
            Ok(answer) if answer.status == 200 && echoes_json(&answer.body, nonce) => {
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                let version =
                    text.split_once("\"model_version\":\"").map(|(_, rest)| rest.split('"').next().unwrap_or_default());
                seen.extend(version.and_then(|version| version.parse::<u64>().ok()));
            }
            other => failures.lock().expect("no client panics").push(format!("{other:?}")),
        }
        thread::sleep(pause);
    }
    versions.lock().expect("no client panics").push(seen);
}

fn copy_version(model: &Path) {
    let new = model.join("2");
    fs::create_dir(&new).expect("the folder is ours");
    if let Ok(program) = fs::read(model.join("1/model.py")) {
        fs::write(new.join("model.py"), program).expect("the folder is ours");
    }
}

fn load(subject: &Subject) -> (u16, String) {
    let answer = http::post(subject.http, &format!("/v2/repository/models/{VERSIONED}/load"), b"");
    answer.map_or_else(
        |error| (0, error.to_string()),
        |answer| (answer.status, String::from_utf8_lossy(&answer.body).into_owned()),
    )
}

/// Row 9.
pub fn killed_and_restarted(trial: &Trial<'_>) -> Played {
    let folder = crate::support::folder::Folder::new("trials");
    // No model: the cost of a start by itself.
    let wish = Wish { deuteron: &["--model-control-mode=explicit"], triton: &["--model-control-mode=explicit"], ..OWN };
    crate::models::write(folder.path(), trial.form.is_for_python);
    let (mut command, ports) = crate::subject::command(trial, wish, &folder)?;
    let mut server = Server::start(clone(&command), ports);
    let (rounds, mut ready) = (trial.size(3, 20), Vec::new());
    let (is_over, answered, lost) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let address = server.http();
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    // A client with retries: it repeats one request until it is answered.
                    let start = Instant::now();
                    let is_answered = || http::get(address, "/v2").is_ok_and(|answer| answer.status == 200);
                    while !is_answered() && start.elapsed() < Duration::from_secs(10) {
                        thread::sleep(Duration::from_millis(5));
                    }
                    let counter = if start.elapsed() < Duration::from_secs(10) { &answered } else { &lost };
                    counter.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
        for _ in 0..rounds {
            thread::sleep(trial.size(Duration::from_millis(150), Duration::from_millis(500)));
            server.kill();
            let start = Instant::now();
            server = Server::start(clone(&command), ports);
            ready.push(start.elapsed());
        }
    });
    command.env_clear();
    let (p50, longest) = (percentile(&ready, 0.5), ready.iter().max().copied().unwrap_or_default());
    let (answered, lost) = (answered.into_inner(), lost.into_inner());
    trial.figure(format!(
        "{rounds} kills, ready in {} (longest {}), {answered} answered, {lost} lost",
        ms(p50),
        ms(longest)
    ));
    trial.check(lost == 0 && answered > 0, || format!("{lost} lost, {answered} answered"));
    trial.within("ready", longest, Duration::from_millis(300), Duration::from_secs(5));
    let outcome = http::get(address, "/v2/health/ready").map(|answer| answer.status);
    trial.check(outcome.as_ref().is_ok_and(|status| *status == 200), || format!("afterwards: {outcome:?}"));
    Ok(())
}

/// The same command again.
fn clone(command: &std::process::Command) -> std::process::Command {
    let mut copy = std::process::Command::new(command.get_program());
    copy.args(command.get_args());
    for (name, value) in command.get_envs() {
        value.map(|value| copy.env(name, value));
    }
    copy
}
