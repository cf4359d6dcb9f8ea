//! Output of a process: any amount of it reaches the log line by line, and delays no request.

use std::thread;
use std::time::{Duration, Instant};

use crate::python_faults::{Deed, PythonServer, run, until};

#[test]
fn a_flood_of_output_is_logged_line_by_line_and_keeps_nobody_waiting() {
    let Some(served) = PythonServer::start(&[Deed::named("m"), Deed::named("other")], &[]) else { return };
    let address = served.server.http();
    let flood = "line = 'x' * 99 + '\\n'\nfor _ in range(1000):\n    sys.stdout.write(line * 100)\n\
        os.write(1, b'y' * (1 << 20) + b'\\n')\n\
        os.write(2, bytes(range(256)) * 400 + b'\\n')\n\
        os.write(2, b'\\x1b[2J \\xff\\xfe half of a character \\xe2\\x82\\n')\nprint('the end', flush=True)";
    let flooding = thread::spawn(move || {
        let start = Instant::now();
        (run(address, "m", flood), start.elapsed())
    });
    let (mut count, mut longest) = (0, Duration::ZERO);
    while !flooding.is_finished() {
        let start = Instant::now();
        assert_eq!(served.well("other", "result = 1"), "1");
        longest = longest.max(start.elapsed());
        count += 1;
        thread::sleep(Duration::from_millis(5));
    }
    let (outcome, took) = flooding.join().unwrap();
    assert_eq!(outcome, Ok(String::new()));
    println!("the flood took {took:?}; {count} requests beside it, the slowest in {longest:?}");
    assert!(longest < took / 2, "a request to another model waited {longest:?} of {took:?}");
    // The two streams of a process come to the log each by itself.
    let is_whole = || ["the end", "half of a character"].iter().all(|last| served.log_count(&["m_0_0", last]) == 1);
    until("all is in the log", Duration::from_secs(30), is_whole);
    let log = served.server.log();
    let full = format!("m_0_0: {}\"", "x".repeat(99));
    assert_eq!(log.lines().filter(|line| line.ends_with(&full)).count(), 100_000);
    let long: usize = log
        .lines()
        .filter_map(|line| line.split_once("m_0_0: yyyy"))
        .map(|(_, rest)| 4 + rest.matches('y').count())
        .sum();
    assert_eq!(long, 1 << 20);
    for line in log.lines() {
        let level = line.chars().next().unwrap_or_default();
        assert!("IWEV".contains(level) && line.as_bytes()[1..5].iter().all(u8::is_ascii_digit), "{line:?}");
        assert!(!line.contains(char::is_control), "{line:?}");
    }
    assert!(log.contains("\\u001b[2J"), "control characters are escaped");
    assert_eq!(served.well("m", "result = 2"), "2");
}
