//! The scheduler over time: a script of events, an instance that is idle unless the script says
//! that it is busy, and a clock that jumps to the next event or to the scheduler's next timeout.
//! One line each, `micros | event | queue | decision`; the queue is shown before the decision.

use expect_test::{Expect, expect};

use super::*;

struct Timeline {
    scheduler: Scheduler<String>,
    gone: Gone,
    /// Instances are busy until then.
    busy_until: Option<Instant>,
    lines: String,
}

impl Timeline {
    fn queue(&self) -> String {
        let mut names = Vec::new();
        let mut next = self.scheduler.queue.first();
        while let Some(place) = next {
            let (held, rank) = (self.scheduler.queue.get(place).unwrap(), self.scheduler.queue.rank(place).unwrap());
            let mark = if rank.is_delayed { "~" } else { "" };
            names.push(format!("{mark}{}", held.entry.token));
            next = self.scheduler.queue.next(place);
        }
        if names.is_empty() { "-".to_owned() } else { names.join(" ") }
    }

    fn is_busy(&self, now: Instant) -> bool {
        self.busy_until.is_some_and(|until| now < until)
    }

    fn wake_at(&self, now: Instant) -> Option<Instant> {
        if self.is_busy(now) {
            return self.busy_until.into_iter().chain(self.scheduler.poll_expired_timeout()).min();
        }
        self.scheduler.poll_timeout()
    }

    fn handle_event(&mut self, event: &str, now: Instant) -> String {
        if let Some(name) = event.strip_prefix('-') {
            self.gone.0.push(name.to_owned());
        } else if let Some(until) = event.strip_prefix("busy ") {
            self.busy_until = Some(Instant::from_micros(until.parse().unwrap()));
        } else if let Some(ran) = event.strip_prefix("ran ") {
            let (rows, took) = ran.split_once(' ').unwrap();
            // Often enough that the bound is the time itself.
            for _ in 0..100 {
                self.scheduler.handle_run(rows.parse().unwrap(), micros(took.parse().unwrap()));
            }
        } else if event != "wake"
            && let Err(Refused(entry)) = self.scheduler.handle_request(entry(event, now), now)
        {
            return format!("{} refused", entry.token);
        }
        String::new()
    }

    fn decide(&mut self, now: Instant) -> Vec<String> {
        let mut decisions = Vec::new();
        while let Some(Expired { token, cause }) = self.scheduler.poll_expired(now) {
            decisions.push(format!("{token} expired: {cause:?}"));
        }
        if self.is_busy(now) {
            return decisions;
        }
        while let Some(batch) = self.scheduler.poll_batch(now, &mut self.gone) {
            decisions.push(format!("run {} ({})", batch.tokens.join("+"), batch.released.as_str()));
        }
        if let Some(at) = self.scheduler.poll_timeout() {
            decisions.push(format!("ask at {}", at.as_nanos() / 1_000));
        }
        decisions
    }

    fn step(&mut self, event: &str, now: Instant) {
        let refusal = self.handle_event(event, now);
        let queue = self.queue();
        let mut decisions = self.decide(now);
        decisions.splice(..0, (!refusal.is_empty()).then_some(refusal));
        let decision = if decisions.is_empty() { "-".to_owned() } else { decisions.join(", ") };
        let micros = now.as_nanos() / 1_000;
        writeln!(self.lines, "{micros:<3} | {event:<12} | {queue:<11} | {decision}").unwrap();
    }
}

fn check(policy: Policy, script: &str, want: Expect) {
    let scheduler = Scheduler::new(policy);
    let mut timeline = Timeline { scheduler, gone: Gone::default(), busy_until: None, lines: String::new() };
    let mut now = Instant::ZERO;
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (at, event) = line.split_once(' ').unwrap();
        let at = Instant::from_micros(at.parse().unwrap());
        while let Some(wake) = timeline.wake_at(now).filter(|wake| *wake > now && *wake < at) {
            now = wake;
            timeline.step("wake", now);
        }
        now = at;
        timeline.step(event, now);
    }
    while let Some(wake) = timeline.wake_at(now).filter(|wake| *wake > now) {
        now = wake;
        timeline.step("wake", now);
    }
    want.assert_eq(&timeline.lines);
}

fn delayed(policy: Policy, delay: u64) -> Policy {
    Policy { queue_delay_max: micros(delay), ..policy }
}

#[test]
fn the_delay_ends_when_a_preferred_size_is_made_or_the_oldest_is_due() {
    check(
        delayed(preferred(8, &[4]), 100),
        "0 a 2\n 10 b 1\n 20 c 1\n 30 d 1\n 200 e 3\n 220 f 2\n 300 g 8",
        expect![[r#"
            0   | a 2          | a           | ask at 100
            10  | b 1          | a b         | ask at 100
            20  | c 1          | a b c       | run a+b+c (preferred)
            30  | d 1          | d           | ask at 130
            130 | wake         | d           | run d (delay)
            200 | e 3          | e           | ask at 300
            220 | f 2          | e f         | run e (full), ask at 320
            300 | g 8          | f g         | run f (full), run g (full)
        "#]],
    );
}

#[test]
fn a_preferred_size_is_kept_to_until_the_delay_is_over() {
    check(
        delayed(preferred(8, &[4]), 100),
        "0 busy 50\n 1 a 2\n 2 b 2\n 3 c 2\n 200 busy 400\n 201 d 2\n 202 e 2\n 203 f 2\n 399 g 1",
        expect![[r#"
            0   | busy 50      | -           | -
            1   | a 2          | a           | -
            2   | b 2          | a b         | -
            3   | c 2          | a b c       | -
            50  | wake         | a b c       | run a+b (preferred), ask at 103
            103 | wake         | c           | run c (delay)
            200 | busy 400     | -           | -
            201 | d 2          | d           | -
            202 | e 2          | d e         | -
            203 | f 2          | d e f       | -
            399 | g 1          | d e f g     | -
            400 | wake         | d e f g     | run d+e+f+g (delay)
        "#]],
    );
}

#[test]
fn without_preferred_sizes_the_delay_waits_for_the_largest_batch() {
    check(
        delayed(batched(4), 100),
        "0 a 1\n 10 b 1\n 20 c 1\n 30 d 1\n 40 e 3\n 50 f 2\n 200 g 9",
        expect![[r#"
            0   | a 1          | a           | ask at 100
            10  | b 1          | a b         | ask at 100
            20  | c 1          | a b c       | ask at 100
            30  | d 1          | a b c d     | run a+b+c+d (full)
            40  | e 3          | e           | ask at 140
            50  | f 2          | e f         | run e (full), ask at 150
            150 | wake         | f           | run f (delay)
            200 | g 9          | g           | run g (full)
        "#]],
    );
}

#[test]
fn a_shape_that_differs_ends_the_delay() {
    check(
        delayed(batched(8), 100),
        "0 a 1 x4\n 10 b 1 x4\n 20 c 1 x5\n 30 d 1 x5",
        expect![[r#"
            0   | a 1 x4       | a           | ask at 100
            10  | b 1 x4       | a b         | ask at 100
            20  | c 1 x5       | a b c       | run a+b (shape), ask at 120
            30  | d 1 x5       | c d         | ask at 120
            120 | wake         | c d         | run c+d (delay)
        "#]],
    );
}

#[test]
fn an_entry_that_goes_during_the_delay_takes_its_age_with_it() {
    check(
        delayed(batched(8), 100),
        "0 a 1\n 50 b 1\n 60 -a\n 120 c 1",
        expect![[r#"
            0   | a 1          | a           | ask at 100
            50  | b 1          | a b         | ask at 100
            60  | -a           | a b         | ask at 150
            120 | c 1          | b c         | ask at 150
            150 | wake         | b c         | run b+c (delay)
        "#]],
    );
}

#[test]
fn what_waits_longer_than_its_timeout_is_rejected_while_instances_are_busy() {
    let queue_default = QueuePolicy { timeout_default: micros(30), may_override: true, ..QueuePolicy::default() };
    check(
        Policy { queue_default, ..batched(8) },
        "0 busy 100\n 1 a 1\n 2 b 1 t5\n 3 c 1 t500\n 80 d 1\n 90 e 1 d95",
        expect![[r#"
            0   | busy 100     | -           | -
            1   | a 1          | a           | -
            2   | b 1 t5       | a b         | -
            3   | c 1 t500     | a b c       | -
            7   | wake         | a b c       | b expired: Timeout
            31  | wake         | a c         | a expired: Timeout
            33  | wake         | c           | c expired: Timeout
            80  | d 1          | d           | -
            90  | e 1 d95      | d e         | -
            95  | wake         | d e         | e expired: Deadline
            100 | wake         | d           | run d (idle)
        "#]],
    );
}

#[test]
fn what_waits_longer_than_its_timeout_is_delayed_and_still_runs() {
    let queue_default =
        QueuePolicy { timeout_action: TimeoutAction::Delay, timeout_default: micros(30), ..QueuePolicy::default() };
    check(
        Policy { queue_default, ..batched(2) },
        "0 busy 100\n 1 a 1\n 2 b 1\n 80 c 1\n 90 d 1\n 95 e 1",
        expect![[r#"
            0   | busy 100     | -           | -
            1   | a 1          | a           | -
            2   | b 1          | a b         | -
            31  | wake         | a b         | -
            32  | wake         | b ~a        | -
            80  | c 1          | c ~a ~b     | -
            90  | d 1          | c d ~a ~b   | -
            95  | e 1          | c d e ~a ~b | -
            100 | wake         | c d e ~a ~b | run c+d (full), run e+a (full), run b (idle)
        "#]],
    );
}

#[test]
fn a_timeout_that_passes_during_the_delay_leaves_the_rest_to_wait_on() {
    let queue_default = QueuePolicy { timeout_default: micros(500), may_override: true, ..QueuePolicy::default() };
    check(
        delayed(Policy { queue_default, ..batched(8) }, 100),
        "0 a 1 t40\n 20 b 1",
        expect![[r#"
            0   | a 1 t40      | a           | ask at 40
            20  | b 1          | a b         | ask at 40
            40  | wake         | a b         | a expired: Timeout, ask at 120
            120 | wake         | b           | run b (delay)
        "#]],
    );
}

#[test]
fn levels_share_a_batch_with_the_highest_first() {
    check(
        delayed(Policy { rows_preferred: vec![4], ..levels(3, 2) }, 100),
        "0 busy 50\n 1 a 1 p3\n 2 b 1\n 3 c 1 p1\n 4 d 2 p1\n 5 e 1 p1\n 60 f 1 p3",
        expect![[r#"
            0   | busy 50      | -           | -
            1   | a 1 p3       | a           | -
            2   | b 1          | b a         | -
            3   | c 1 p1       | c b a       | -
            4   | d 2 p1       | c d b a     | -
            5   | e 1 p1       | c d e b a   | -
            50  | wake         | c d e b a   | run c+d+e (preferred), ask at 101
            60  | f 1 p3       | b a f       | ask at 101
            101 | wake         | b a f       | run b+a+f (delay)
        "#]],
    );
}

#[test]
fn the_delay_ends_when_a_deadline_needs_it_by_the_measured_run_time() {
    check(
        delayed(batched(8), 100),
        "0 a 1 d50\n 60 ran 1 20\n 61 ran 2 30\n 100 b 1 d150\n 110 c 1 d170\n 300 e 1 d310",
        expect![[r#"
            0   | a 1 d50      | a           | ask at 50
            50  | wake         | a           | a expired: Deadline
            60  | ran 1 20     | -           | -
            61  | ran 2 30     | -           | -
            100 | b 1 d150     | b           | ask at 130
            110 | c 1 d170     | b c         | ask at 120
            120 | wake         | b c         | run b+c (deadline)
            300 | e 1 d310     | e           | run e (deadline)
        "#]],
    );
}

#[test]
fn with_a_target_a_batch_is_as_large_as_half_of_it_allows_and_waits_while_that_saves() {
    let policy = Policy { latency_target: Some(micros(100)), ..batched(8) };
    let learned = "0 ran 1 30\n 0 ran 2 32\n 0 ran 4 40\n 0 ran 8 60\n";
    check(
        policy,
        &format!("{learned} 10 a 1\n 14 b 1\n 18 c 1\n 22 d 1\n 26 e 1\n 30 busy 300\n 200 f 3\n 210 g 2"),
        expect![[r#"
            0   | ran 1 30     | -           | -
            0   | ran 2 32     | -           | -
            0   | ran 4 40     | -           | -
            0   | ran 8 60     | -           | -
            10  | a 1          | a           | run a (idle)
            14  | b 1          | b           | ask at 42
            18  | c 1          | b c         | ask at 30
            22  | d 1          | b c d       | ask at 52
            26  | e 1          | b c d e     | run b+c+d+e (full)
            30  | busy 300     | -           | -
            200 | f 3          | f           | -
            210 | g 2          | f g         | -
            300 | wake         | f g         | run f (full), run g (idle)
        "#]],
    );
}
