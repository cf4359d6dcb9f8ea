//! The scheduler by tables: scripts of requests and polls, and whole timelines with and without an idle instance.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::*;

pub(crate) mod replay;
mod timeline;

/// The names of cancelled entries; all others wait.
#[derive(Default)]
struct Gone(Vec<String>);

impl Claims<String> for Gone {
    fn is_waiting(&mut self, token: &String) -> bool {
        !self.0.contains(token)
    }

    fn claim(&mut self, token: &String) -> bool {
        self.is_waiting(token)
    }
}

/// A request from words: `name rows`, then `xSIZE` a shape, `pLEVEL` a priority, `tMICROS` a
/// timeout and `dMICROS` a deadline.
fn entry(words: &str, now: Instant) -> Entry<String> {
    let mut words = words.split_whitespace();
    let token = words.next().unwrap().to_owned();
    let rows = words.next().unwrap().parse().unwrap();
    let shape_key = ShapeKey::new();
    let (priority, timeout, deadline) = (0, Duration::ZERO, None);
    let mut entry = Entry { token, rows, shape_key, queued_at: now, priority, timeout, deadline };
    for word in words {
        let value: u64 = word[1..].parse().unwrap();
        match &word[..1] {
            "d" => entry.deadline = Some(Instant::from_micros(value)),
            "p" => entry.priority = value,
            "t" => entry.timeout = Duration::from_micros(value),
            "x" => entry.shape_key.push(value as i64),
            _ => panic!("{word}"),
        }
    }
    entry
}

/// Runs a script, a microsecond a line: words of a request queue it, `-name` cancels it, `poll` polls
/// for a batch, `sweep` evicts cancelled entries. Returns a line for each poll and refusal.
fn script(policy: Policy, lines: &str) -> String {
    let mut scheduler = Scheduler::new(policy);
    let (mut gone, mut out) = (Gone::default(), String::new());
    for (tick, line) in lines.lines().map(str::trim).enumerate() {
        let now = Instant::from_micros(tick as u64);
        if line == "poll" {
            let batch = scheduler.poll_batch(now, &mut gone);
            let shown = |batch: EntryBatch<String>| format!("{} {}", batch.tokens.join("+"), batch.released.as_str());
            writeln!(out, "{}", batch.map_or_else(|| "-".to_owned(), shown)).unwrap();
        } else if line == "sweep" {
            scheduler.evict_cancelled(&mut gone);
        } else if let Some(name) = line.strip_prefix('-') {
            gone.0.push(name.to_owned());
        } else if let Err(Refused(entry)) = scheduler.handle_request(entry(line, now), now) {
            writeln!(out, "{} refused", entry.token).unwrap();
        }
    }
    out
}

fn batched(rows_max: u32) -> Policy {
    Policy { rows_max, is_batched: true, ..Policy::default() }
}

fn preferred(rows_max: u32, sizes: &[u32]) -> Policy {
    Policy { rows_preferred: sizes.to_vec(), ..batched(rows_max) }
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn levels(count: u64, default: u64) -> Policy {
    Policy { priority_levels: count, priority_default: default, ..batched(8) }
}

#[test]
fn an_idle_instance_takes_what_waits_up_to_the_largest_batch() {
    let got = script(batched(8), "poll\n a 4\n b 3\n c 2\n d 1\n poll\n poll\n poll");
    assert_eq!(got, "-\na+b full\nc+d idle\n-\n");
}

#[test]
fn without_dynamic_batching_requests_run_alone_in_order() {
    let policy = Policy { rows_max: 8, ..Policy::default() };
    assert_eq!(script(policy, "a 1\n b 8\n poll\n poll\n poll"), "a idle\nb idle\n-\n");
}

#[test]
fn a_model_without_a_batch_axis_runs_one_request_at_a_time() {
    assert_eq!(script(Policy::default(), "a 1\n b 1\n poll\n poll"), "a idle\nb idle\n");
    assert_eq!(script(batched(0), "a 1\n b 1\n poll\n poll"), "a full\nb full\n");
}

#[test]
fn shapes_that_differ_never_share_a_batch_and_order_is_kept() {
    let got = script(batched(8), "a 1 x16\n b 1 x16\n c 1 x24\n d 1 x16\n poll\n poll\n poll");
    assert_eq!(got, "a+b shape\nc shape\nd idle\n");
}

#[test]
fn a_cancelled_entry_takes_no_place_in_a_batch() {
    let got = script(batched(2), "a 1\n b 1\n c 1\n -a\n -b\n poll\n poll");
    assert_eq!(got, "c idle\n-\n");
    assert_eq!(script(batched(4), "a 1 x9\n b 1 x16\n c 1 x16\n -a\n poll"), "b+c idle\n");
    assert_eq!(script(preferred(8, &[2, 8]), "a 1\n b 1\n c 1\n -b\n poll"), "a+c preferred\n");
}

#[test]
fn an_entry_larger_than_the_largest_batch_or_preferred_size_runs_alone() {
    let got = script(batched(2), "a 1\n b 5\n c 1\n poll\n poll\n poll");
    assert_eq!(got, "a full\nb full\nc idle\n");
    let got = script(preferred(8, &[2, 4]), "a 6\n b 1\n c 6\n poll\n poll\n poll");
    assert_eq!(got, "a full\nb full\nc full\n");
}

#[test]
fn no_rows_count_as_one() {
    assert_eq!(script(batched(2), "a 0\n b 0\n c 0\n poll\n poll"), "a+b full\nc idle\n");
}

#[test]
fn the_largest_preferred_size_that_can_be_made_is_made() {
    let ones = "a 1\n b 1\n c 1\n d 1\n e 1\n f 1\n g 1\n";
    let got = script(preferred(8, &[2, 4]), &format!("{ones} poll\n poll\n poll\n poll"));
    assert_eq!(got, "a+b+c+d preferred\ne+f preferred\ng idle\n-\n");
    assert_eq!(script(preferred(8, &[4, 8]), &format!("{ones} h 1\n poll")), "a+b+c+d+e+f+g+h full\n");
    let got = script(preferred(8, &[4, 6]), "a 3\n b 3\n c 2\n poll\n poll");
    assert_eq!(got, "a+b preferred\nc idle\n");
    let got = script(preferred(8, &[4]), "a 3\n b 3\n c 1\n poll\n poll");
    assert_eq!(got, "a full\nb+c preferred\n");
}

#[test]
fn a_full_queue_returns_the_entry_until_cancelled_ones_are_evicted() {
    let policy = Policy { entries_max: 2, ..batched(8) };
    assert_eq!(script(policy.clone(), "a 1\n b 1\n c 1\n poll\n d 1\n poll"), "c refused\na+b idle\nd idle\n");
    let got = script(policy, "a 1\n b 1\n -a\n c 1\n sweep\n d 1\n e 1\n poll");
    assert_eq!(got, "c refused\ne refused\nb+d idle\n");
}

#[test]
fn higher_levels_pass_lower_ones_and_each_is_in_order() {
    let got = script(
        Policy { rows_max: 2, ..levels(3, 2) },
        "a 1 p3\n b 1\n c 1 p1\n d 1 p2\n e 1 p9\n f 1 p1\n poll\n poll\n poll",
    );
    assert_eq!(got, "c+f full\nb+d full\ne+a full\n");
}

#[test]
fn without_levels_a_priority_means_nothing() {
    assert_eq!(script(batched(1), "a 1 p3\n b 1 p1\n poll\n poll"), "a full\nb full\n");
}

/// Entries are withdrawn between the scan and the claim.
struct Faster(usize);

impl Claims<String> for Faster {
    fn is_waiting(&mut self, _token: &String) -> bool {
        true
    }

    fn claim(&mut self, _token: &String) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 == 0
    }
}

#[test]
fn a_claim_that_is_lost_after_the_scan_leaves_the_rest_of_the_batch() {
    let check = |lost: usize, want: Option<(&[&str], u32)>| {
        let mut scheduler = Scheduler::new(batched(2));
        for name in ["a", "b", "c"] {
            scheduler.handle_request(entry(&format!("{name} 1"), Instant::ZERO), Instant::ZERO).unwrap();
        }
        let got = scheduler.poll_batch(Instant::ZERO, &mut Faster(lost + 1));
        let got = got.map(|batch| (batch.tokens, batch.rows));
        assert_eq!(got, want.map(|(tokens, rows)| (tokens.iter().map(|name| (*name).to_owned()).collect(), rows)));
    };
    check(0, Some((&["a", "b"], 2)));
    check(1, Some((&["b"], 1)));
    check(2, Some((&["c"], 1)));
    check(3, None);
}

#[test]
fn a_timeout_is_over_at_its_instant_and_a_deadline_in_any_level() {
    let queue = |timeout_action, may_override| QueuePolicy {
        timeout_action,
        timeout_default: micros(100),
        may_override,
        ..QueuePolicy::default()
    };
    let check = |action: TimeoutAction, words: &str, want: Option<(u64, Expiry)>| {
        let mut scheduler = Scheduler::new(Policy { queue_default: queue(action, true), ..batched(4) });
        scheduler.handle_request(entry(words, Instant::ZERO), Instant::ZERO).unwrap();
        let last = want.map_or(1_000, |(at, _)| at - 1);
        assert_eq!(scheduler.poll_expired(Instant::from_micros(last)), None, "{words}");
        let Some((at, cause)) = want else { return };
        assert_eq!(scheduler.poll_expired_timeout(), Some(Instant::from_micros(at)), "{words}");
        let got = scheduler.poll_expired(Instant::from_micros(at)).map(|expired| expired.cause);
        assert_eq!((got, scheduler.len()), (Some(cause), 0), "{words}");
    };
    check(TimeoutAction::Reject, "a 1", Some((100, Expiry::Timeout)));
    check(TimeoutAction::Reject, "a 1 t30", Some((30, Expiry::Timeout)));
    check(TimeoutAction::Reject, "a 1 t300", Some((100, Expiry::Timeout)));
    check(TimeoutAction::Reject, "a 1 d70", Some((70, Expiry::Deadline)));
    check(TimeoutAction::Reject, "a 1 d700", Some((100, Expiry::Timeout)));
    check(TimeoutAction::Delay, "a 1", None);
    check(TimeoutAction::Delay, "a 1 t30", None);
    check(TimeoutAction::Delay, "a 1 d70", Some((70, Expiry::Deadline)));
    check(TimeoutAction::Delay, "a 1 t30 d7000", None);
}

#[test]
fn an_expired_entry_is_never_in_a_batch_and_is_handed_out_once() {
    let queue_default = QueuePolicy { timeout_default: micros(10), ..QueuePolicy::default() };
    let mut scheduler = Scheduler::new(Policy { queue_default, ..batched(4) });
    let at = Instant::from_micros;
    scheduler.handle_request(entry("a 1", at(0)), at(0)).unwrap();
    scheduler.handle_request(entry("b 1", at(5)), at(5)).unwrap();
    let batch = scheduler.poll_batch(at(10), &mut Gone::default()).unwrap();
    assert_eq!(batch.tokens, ["b"]);
    let expired: Vec<_> = std::iter::from_fn(|| scheduler.poll_expired(at(99))).map(|expired| expired.token).collect();
    assert_eq!(expired, ["a"]);
    assert!(scheduler.is_empty() && scheduler.alarms.is_empty());
}

#[test]
fn delayed_entries_come_after_those_in_time_of_their_level_and_before_lower_levels() {
    let delay =
        QueuePolicy { timeout_action: TimeoutAction::Delay, timeout_default: micros(3), ..QueuePolicy::default() };
    let policy = Policy { queue_by_level: BTreeMap::from([(1, delay)]), rows_max: 1, ..levels(2, 2) };
    let got = script(policy, "a 1 p1\n b 1 p1\n low 1 p2\n c 1 p1\n d 1 p1\n poll\n poll\n poll\n poll\n poll");
    assert_eq!(got, "c full\nd full\na full\nb full\nlow full\n");
}

#[test]
fn a_thousand_levels_cost_what_their_entries_do() {
    let mut scheduler = Scheduler::new(levels(u64::MAX, u64::MAX));
    for level in (1..=1_000_u64).rev() {
        let entry = Entry { priority: level * 7, ..entry("a 1", Instant::ZERO) };
        scheduler.handle_request(entry, Instant::ZERO).unwrap();
    }
    let rows: u32 =
        std::iter::from_fn(|| scheduler.poll_batch(Instant::ZERO, &mut Gone::default())).map(|batch| batch.rows).sum();
    assert_eq!((rows, scheduler.len(), scheduler.poll_timeout()), (1_000, 0, None));
}

#[test]
fn so_many_rows_are_wanted_as_are_missing_to_the_next_size() {
    let check = |policy: Policy, lines: &[&str], want: u32| {
        let mut scheduler = Scheduler::new(Policy { queue_delay_max: micros(100), ..policy });
        for line in lines {
            scheduler.handle_request(entry(line, Instant::ZERO), Instant::ZERO).unwrap();
        }
        assert_eq!(scheduler.poll_batch(Instant::ZERO, &mut Gone::default()), None, "{lines:?}");
        assert_eq!(scheduler.rows_wanted(), want, "{lines:?}");
    };
    check(batched(8), &[], 0);
    check(batched(8), &["a 1"], 7);
    check(batched(8), &["a 1", "b 2"], 5);
    check(preferred(8, &[2, 6]), &["a 1"], 1);
    check(preferred(8, &[2, 6]), &["a 3", "b 2"], 1);
    check(levels(2, 1), &["a 1"], 0);
}

#[test]
fn the_reasons_have_a_name_each() {
    assert!(ReleaseReason::ALL.map(ReleaseReason::as_str).is_sorted());
}

/// The text of the assertion that fails in `act`.
pub(super) fn tripped(act: impl FnOnce()) -> String {
    let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).expect_err("it is noticed");
    let text = payload.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| (*payload.downcast_ref::<&str>().expect("a panic has a text")).to_owned())
}

#[test]
fn a_corrupted_queue_fails_an_assertion_at_its_next_change() {
    let check = |spoil: fn(&mut Scheduler<String>), want: &str| {
        let mut scheduler = Scheduler::new(batched(4));
        let now = Instant::ZERO;
        for words in ["a 1 d9", "b 1 d9"] {
            scheduler.handle_request(entry(words, now), now).unwrap();
        }
        spoil(&mut scheduler);
        let told = tripped(|| {
            scheduler.evict_cancelled(&mut Gone(vec!["a".to_owned()]));
            scheduler.poll_batch(now, &mut Gone::default());
        });
        assert!(told.contains(want), "{told}, not {want}");
    };
    check(|scheduler| scheduler.alarms.clear(), "an entry with a timer has an alarm");
    check(|scheduler| scheduler.policy.entries_max = 0, "the bound on entries holds");
    check(|scheduler| scheduler.ask_at = scheduler.alarms.pop_first().and(None), "an entry with a timer has an alarm");
    let more = |scheduler: &mut Scheduler<String>| {
        let place = scheduler.queue.first().unwrap();
        scheduler.alarms.extend([7, 8].map(|number| TimeoutAlarm { at: Instant::from_micros(99), number, place }));
    };
    check(more, "an entry has one alarm at most");
    check(|scheduler| scheduler.entry_count = 0, "each has a number of its own");
}

#[test]
fn leaving_twice_fails_an_assertion() {
    let admission = Admission::new(&Policy::default(), QueueBounds { requests: 3, bytes: 100 });
    admission.enter(0, 60).unwrap();
    admission.leave(0, 60);
    assert!(tripped(|| admission.leave(0, 60)).contains("leaves once"));
    let forecast = Forecast::new(&batched(4), 1);
    forecast.handle_request(0, 2);
    assert!(tripped(|| forecast.handle_leave(0, 3)).contains("had waited there"));
}

#[test]
fn a_batch_of_many_rows_has_a_bounded_number_of_requests() {
    let entries_max = BATCH_REQUESTS_MAX + 1;
    let policy = Policy { rows_max: i32::MAX.unsigned_abs(), is_batched: true, entries_max, ..Policy::default() };
    let mut scheduler = Scheduler::new(policy);
    let now = Instant::from_micros(0);
    for _ in 0..=BATCH_REQUESTS_MAX {
        assert!(scheduler.handle_request(entry("a 1", now), now).is_ok());
    }
    let mut counts = Vec::new();
    while let Some(batch) = scheduler.poll_batch(now, &mut Gone::default()) {
        counts.push((batch.tokens.len(), batch.released));
    }
    assert_eq!(counts, [(BATCH_REQUESTS_MAX, ReleaseReason::Full), (1, ReleaseReason::Idle)]);
}
