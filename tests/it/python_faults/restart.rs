//! Processes that end again and again: the server does not start them in a loop, and no request waits for ever.

use std::fs;
use std::time::{Duration, Instant};

use crate::python_faults::{Deed, PythonServer, kill, until};
use crate::support::folder::Folder;

/// Time for which the storms are watched.
const WATCHED: Duration = Duration::from_secs(3);
/// Time limit until a request is refused: an attempt to start a process, on a busy machine.
const REFUSED: Duration = Duration::from_secs(15);
/// Processor time of the server meanwhile: a loop would take all of `WATCHED`.
const CPU_MAX: Duration = Duration::from_millis(750);

/// Processor time that a process has used.
fn cpu(id: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let words: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = words[11].parse::<u64>().unwrap() + words[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn lines(file: &std::path::Path) -> usize {
    fs::read_to_string(file).unwrap_or_default().lines().count()
}

#[test]
fn a_model_that_ends_in_each_batch_is_started_after_pauses_that_grow() {
    let folder = Folder::new("storm");
    let file = folder.path().join("starts");
    let initialize = format!("print('started', file=open('{}', 'a'))", file.display());
    let deeds = [Deed { initialize: &initialize, ..Deed::named("m") }, Deed::named("other")];
    let Some(served) = PythonServer::start(&deeds, &[]) else { return };
    let other = served.pid("other");
    let (start, before) = (Instant::now(), cpu(served.server.id()));
    let (mut count, mut longest) = (0, Duration::ZERO);
    while start.elapsed() < WATCHED {
        let asked = Instant::now();
        let (status, text) = served.run("m", "os._exit(3)").unwrap_err();
        longest = longest.max(asked.elapsed());
        if count < 3 || text.contains("healthy") {
            println!("{:?}: {status} {text}", start.elapsed());
        }
        count += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    let used = cpu(served.server.id()).saturating_sub(before);
    println!("{count} requests, the slowest in {longest:?}, {} starts, {used:?} of processor time", lines(&file));
    assert!((2..=5).contains(&lines(&file)), "{}\n{}", lines(&file), served.server.log());
    assert!(longest < REFUSED, "{longest:?}");
    assert!(used < CPU_MAX, "{used:?}");
    assert_eq!(served.pid("other"), other);
    // A process that has answered is started again at once: with growing pauses the fourth and the fifth would take
    // eight and sixteen seconds.
    until("it serves again", Duration::from_secs(20), || served.run("m", "result = 1").is_ok());
    let ends = [(); 5].map(|()| {
        let (pid, start) = (served.pid("m"), Instant::now());
        kill(pid, "KILL");
        assert_ne!(served.pid("m"), pid);
        start.elapsed()
    });
    println!("five ends took {ends:?}");
    assert!(ends[3..].iter().min() < Some(&Duration::from_secs(8)), "{ends:?}");
}

#[test]
fn a_model_that_starts_only_once_is_tried_again_after_pauses_that_grow() {
    let folder = Folder::new("storm");
    let (file, fail) = (folder.path().join("starts"), folder.path().join("fail"));
    let initialize = format!(
        "print('started', file=open('{}', 'a'))\nif os.path.exists('{}'):\n    raise ValueError('not twice')",
        file.display(),
        fail.display()
    );
    let Some(served) = PythonServer::start(&[Deed { initialize: &initialize, ..Deed::named("m") }], &[]) else {
        return;
    };
    let pid = served.pid("m");
    fs::write(&fail, "").unwrap();
    kill(pid, "KILL");
    let (start, before) = (Instant::now(), cpu(served.server.id()));
    let mut longest = Duration::ZERO;
    while start.elapsed() < WATCHED {
        let asked = Instant::now();
        assert!(served.run("m", "result = 1").is_err());
        longest = longest.max(asked.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    let used = cpu(served.server.id()).saturating_sub(before);
    println!("the slowest request in {longest:?}, {} starts, {used:?} of processor time", lines(&file));
    assert!((2..=5).contains(&lines(&file)), "{}\n{}", lines(&file), served.server.log());
    assert!(longest < REFUSED && used < CPU_MAX, "{longest:?} {used:?}");
    assert!(served.log_count(&["m_0_0", "ValueError: not twice"]) >= 1, "why: {}", served.server.log());
    fs::remove_file(&fail).unwrap();
    until("it serves again", Duration::from_secs(20), || served.run("m", "result = 1").is_ok());
}
