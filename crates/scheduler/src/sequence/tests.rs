//! The sequence batcher by scripts: events, and the batches that an idle instance gets. One line
//! each, `micros | event | decision`; the clock jumps to the time at which the batcher wants to be
//! asked.

use std::fmt::Write;

use expect_test::{Expect, expect};

use super::*;
use crate::ShapeKey;

/// A request: a letter for its sequence, a number for its place, as in `a1`.
type Token = String;

#[derive(Default)]
struct Gone(Vec<Token>);

impl Claims<Token> for Gone {
    fn is_waiting(&mut self, token: &Token) -> bool {
        !self.0.contains(token)
    }

    fn claim(&mut self, token: &Token) -> bool {
        self.is_waiting(token)
    }
}

struct Timeline {
    sequences: Sequences<char, Token>,
    gone: Gone,
    /// Instances with a batch.
    busy: Vec<usize>,
    /// The requests that ran last.
    flights: Vec<(Token, RunId)>,
    lines: String,
}

impl Timeline {
    fn new(policy: SequencePolicy) -> Self {
        let (sequences, gone) = (Sequences::new(policy), Gone::default());
        Self { sequences, gone, busy: Vec::new(), flights: Vec::new(), lines: String::new() }
    }

    /// `^a1` begins a sequence, `a2` goes on, `a3$` ends it, with `xSIZE` a shape and `tMICROS` a
    /// timeout; `-a1` is withdrawn, `<a` leaves; `busy 0`, `done 0`, `dead 0`, `renewed 0`, `back 0`,
    /// `add 0`, `leave 0`, `stay 0` are about an instance; `again a1` and `over a1` say that a request that ran is rescheduled or finished.
    fn handle_event(&mut self, event: &str, now: Instant) -> String {
        let (word, rest) = event.split_once(' ').unwrap_or((event, ""));
        let index = || rest.parse::<usize>().unwrap();
        match word {
            "busy" => self.busy.push(index()),
            "done" | "dead" | "renewed" => {
                self.busy.retain(|busy| *busy != index());
                match word {
                    "done" => self.sequences.handle_done(index(), now),
                    _ => self.sequences.handle_instance_lost(index(), word == "renewed", now, &mut self.gone),
                }
            }
            "back" => self.sequences.handle_instance_restored(index(), now),
            "add" => self.sequences.handle_instance_added(index(), now),
            "leave" => self.sequences.handle_instance_leaving(index()),
            "stay" => self.sequences.handle_instance_staying(index(), now),
            "again" | "over" => return self.handle_release(word, rest, now),
            "drain" => self.sequences.handle_drain(),
            "unload" => self.sequences.handle_unload(),
            "sweep" => self.sequences.evict_cancelled(now, &mut self.gone),
            "wake" => {}
            _ if word.starts_with('-') => self.gone.0.push(word[1..].to_owned()),
            _ if word.starts_with('<') => {
                let id = word.chars().nth(1).unwrap();
                let since = if rest.is_empty() { now } else { Instant::from_micros(rest.parse().unwrap()) };
                self.sequences.handle_departure(&id, since, now, &mut self.gone);
            }
            _ => return self.handle_request(word, rest, now),
        }
        String::new()
    }

    fn handle_release(&mut self, word: &str, token: &str, now: Instant) -> String {
        let at = self.flights.iter().position(|(known, _)| known == token).unwrap();
        let (token, flight) = self.flights.remove(at);
        if word == "over" {
            self.sequences.handle_finished(flight, now, &mut self.gone);
            return String::new();
        }
        let refused = self.sequences.handle_rescheduled(flight, token, now, &mut self.gone).err();
        refused.map_or(String::new(), |UnstartedRequest { token }| format!("{token} unstarted"))
    }

    fn handle_request(&mut self, word: &str, more: &str, now: Instant) -> String {
        let token = word.trim_start_matches('^').trim_end_matches('$').to_owned();
        let mut entry = SequenceEntry {
            id: token.chars().next().unwrap(),
            token,
            is_start: word.starts_with('^'),
            is_end: word.ends_with('$'),
            shape_key: ShapeKey::new(),
            queued_at: now,
            timeout: Duration::ZERO,
        };
        for word in more.split_whitespace() {
            match word.split_at(1) {
                ("t", micros) => entry.timeout = Duration::from_micros(micros.parse().unwrap()),
                ("x", size) => entry.shape_key.push(size.parse().unwrap()),
                _ => panic!("{word}"),
            }
        }
        let refused = self.sequences.handle_request(entry, now).err();
        refused.map_or(String::new(), |UnstartedRequest { token }| format!("{token} unstarted"))
    }

    fn decide(&mut self, now: Instant) -> Vec<String> {
        let mut decisions = Vec::new();
        for instance in 0..self.sequences.instances.len() {
            if self.busy.contains(&instance) {
                continue;
            }
            if let Some(batch) = self.sequences.poll_batch(instance, now, &mut self.gone) {
                let row =
                    |row: &SequenceBatchRow<Token>| format!("{}{}", row.slot, row.token.as_deref().unwrap_or("-"));
                let rows: Vec<_> = batch.rows.iter().map(row).collect();
                self.flights.extend(batch.rows.iter().filter_map(|row| row.token.clone().zip(row.flight)));
                let ended = if batch.ended.is_empty() { String::new() } else { format!(" ended {:?}", batch.ended) };
                decisions.push(format!("{instance}: {} ({}){ended}", rows.join(" "), batch.released.as_str()));
                self.busy.push(instance);
            }
        }
        while let Some(BrokenRequest { token, end }) = self.sequences.poll_broken(now) {
            decisions.push(format!("{token} broken: {}", end.as_str()));
        }
        if let Some(at) = self.sequences.poll_timeout() {
            decisions.push(format!("ask at {}", at.as_nanos() / 1_000));
        }
        decisions
    }

    fn step(&mut self, event: &str, now: Instant) {
        let refusal = self.handle_event(event, now);
        let mut decisions = self.decide(now);
        decisions.splice(..0, (!refusal.is_empty()).then_some(refusal));
        let decision = if decisions.is_empty() { "-".to_owned() } else { decisions.join(", ") };
        writeln!(self.lines, "{:<3} | {event:<9} | {decision}", now.as_nanos() / 1_000).unwrap();
    }
}

fn check(policy: SequencePolicy, script: &str, want: Expect) {
    let mut timeline = Timeline::new(policy);
    let mut now = Instant::ZERO;
    for line in script.split(',').map(str::trim) {
        let (at, event) = line.split_once(' ').unwrap();
        let at = Instant::from_micros(at.parse().unwrap());
        while let Some(wake) = timeline.sequences.poll_timeout().filter(|wake| *wake > now && *wake < at) {
            now = wake;
            timeline.step("wake", now);
        }
        now = at;
        timeline.step(event, now);
    }
    let sequences = &timeline.sequences;
    let ends = SequenceEnd::ALL.iter().filter(|end| sequences.ended(**end) > 0);
    let ends: String = ends.map(|end| format!(", {} {}", end.as_str(), sequences.ended(*end))).collect();
    let (active, backlogged) = (sequences.active(), sequences.backlogged());
    writeln!(timeline.lines, "{active} active, {backlogged} wait{ends}").unwrap();
    want.assert_eq(&timeline.lines);
}

fn direct(instances: usize, slots: usize) -> SequencePolicy {
    let strategy = SlotStrategy::Direct { queue_delay_max: Duration::ZERO, slots_least: 0 };
    SequencePolicy { strategy, instances, slots, idle_max: Duration::from_micros(100), is_iterative: false }
}

fn oldest(instances: usize, slots: usize, rows_max: u32) -> SequencePolicy {
    let policy = Policy { rows_max, is_batched: rows_max > 0, ..Policy::default() };
    SequencePolicy { strategy: SlotStrategy::Oldest(policy), ..direct(instances, slots) }
}

#[test]
fn sequences_take_the_lowest_slots_over_all_instances_and_keep_them() {
    check(
        direct(2, 2),
        "0 busy 0, 0 busy 1, 1 ^a1, 2 ^b1, 3 ^c1, 4 ^d1, 5 c2, 6 a2, 10 done 0, 11 done 1, 20 done 0, 21 done 1, \
         30 done 0",
        expect![[r#"
            0   | busy 0    | -
            0   | busy 1    | -
            1   | ^a1       | -
            2   | ^b1       | -
            3   | ^c1       | -
            4   | ^d1       | -
            5   | c2        | -
            6   | a2        | -
            10  | done 0    | 0: 0a1 1c1 (full)
            11  | done 1    | 1: 0b1 1d1 (full)
            20  | done 0    | 0: 0a2 1c2 (full)
            21  | done 1    | ask at 121
            30  | done 0    | ask at 121
            4 active, 0 wait
        "#]],
    );
}

#[test]
fn a_slot_without_a_request_is_an_empty_row_and_those_above_the_last_are_none() {
    check(
        direct(1, 4),
        "0 busy 0, 1 ^a1, 2 ^b1, 3 ^c1, 4 done 0, 5 c2, 6 done 0, 7 a2, 8 done 0",
        expect![[r#"
            0   | busy 0    | -
            1   | ^a1       | -
            2   | ^b1       | -
            3   | ^c1       | -
            4   | done 0    | 0: 0a1 1b1 2c1 (idle)
            5   | c2        | -
            6   | done 0    | 0: 0- 1- 2c2 (idle), ask at 106
            7   | a2        | ask at 106
            8   | done 0    | 0: 0a2 (idle), ask at 106
            3 active, 0 wait
        "#]],
    );
}

#[test]
fn a_sequence_must_begin_and_is_over_after_its_end() {
    check(
        direct(1, 1),
        "0 a1, 1 ^a2$, 2 a3, 3 ^b1, 4 b2$, 5 b3, 6 done 0, 7 done 0, 8 done 0",
        expect![[r#"
            0   | a1        | a1 unstarted
            1   | ^a2$      | 0: 0a2 (full)
            2   | a3        | a3 unstarted
            3   | ^b1       | -
            4   | b2$       | -
            5   | b3        | b3 unstarted
            6   | done 0    | 0: 0b1 (full)
            7   | done 0    | 0: 0b2 (full)
            8   | done 0    | -
            0 active, 0 wait, end 2
        "#]],
    );
}

#[test]
fn with_all_slots_taken_a_sequence_waits_and_the_oldest_has_the_next_slot() {
    check(
        direct(1, 1),
        "0 ^a1, 1 ^b1, 2 ^c1, 3 b2$, 4 c2$, 5 a2$, 10 done 0, 20 done 0, 30 done 0, 40 done 0, 50 done 0, 60 done 0",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (full)
            1   | ^b1       | -
            2   | ^c1       | -
            3   | b2$       | -
            4   | c2$       | -
            5   | a2$       | -
            10  | done 0    | 0: 0a2 (full)
            20  | done 0    | 0: 0b1 (full)
            30  | done 0    | 0: 0b2 (full)
            40  | done 0    | 0: 0c1 (full)
            50  | done 0    | 0: 0c2 (full)
            60  | done 0    | -
            0 active, 0 wait, end 3
        "#]],
    );
}

#[test]
fn a_sequence_that_begins_again_goes_on_in_its_slot() {
    check(
        direct(1, 2),
        "0 ^a1, 1 ^a2, 2 a3, 5 done 0, 6 done 0, 7 done 0",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (idle)
            1   | ^a2       | -
            2   | a3        | -
            5   | done 0    | 0: 0a2 (idle)
            6   | done 0    | 0: 0a3 (idle)
            7   | done 0    | ask at 107
            1 active, 0 wait, restart 1
        "#]],
    );
}

#[test]
fn an_idle_sequence_ends_and_its_slot_is_told() {
    check(
        direct(1, 1),
        "0 ^a1, 10 done 0, 20 ^b1, 115 a2, 116 done 0, 300 ^c1",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (full)
            10  | done 0    | ask at 110
            20  | ^b1       | ask at 110
            110 | wake      | 0: 0b1 (full) ended [0]
            115 | a2        | a2 unstarted
            116 | done 0    | ask at 216
            216 | wake      | -
            300 | ^c1       | 0: 0c1 (full) ended [0]
            1 active, 0 wait, idle 2
        "#]],
    );
}

#[test]
fn a_cancelled_request_ends_its_sequence_and_later_ones_are_refused() {
    check(
        direct(1, 2),
        "0 ^a1, 1 ^b1, 2 a2, 3 a3, 4 b2, 5 -a2, 10 done 0, 20 done 0, 21 ^a4, 22 done 0",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (idle)
            1   | ^b1       | -
            2   | a2        | -
            3   | a3        | -
            4   | b2        | -
            5   | -a2       | -
            10  | done 0    | 0: 0- 1b1 (idle) ended [0], a3 broken: cancel
            20  | done 0    | 0: 0- 1b2 (idle)
            21  | ^a4       | -
            22  | done 0    | 0: 0a4 (idle), ask at 122
            2 active, 0 wait, cancel 1
        "#]],
    );
}

#[test]
fn a_client_that_leaves_ends_its_sequence_but_none_that_was_begun_after() {
    check(
        direct(1, 4),
        "0 ^a1, 1 ^b1, 2 ^c1, 5 done 0, 6 done 0, 10 <a, 11 <b 0, 12 ^c2, 13 <c 2, 14 <c, 20 done 0, 21 c3",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (idle)
            1   | ^b1       | -
            2   | ^c1       | -
            5   | done 0    | 0: 0- 1b1 2c1 (idle), ask at 105
            6   | done 0    | ask at 105
            10  | <a        | ask at 106
            11  | <b 0      | ask at 106
            12  | ^c2       | 0: 0- 1- 2c2 (idle) ended [0], ask at 106
            13  | <c 2      | ask at 106
            14  | <c        | ask at 106
            20  | done 0    | ask at 106
            21  | c3        | c3 unstarted, ask at 106
            1 active, 0 wait, cancel 2, restart 1
        "#]],
    );
}

#[test]
fn a_timeout_is_for_those_that_wait_for_a_slot() {
    check(
        direct(1, 1),
        "0 ^a1 t5, 1 ^b1 t50, 2 ^c1, 3 b2 t20, 40 b3, 90 done 0, 91 a2$, 95 done 0",
        expect![[r#"
            0   | ^a1 t5    | 0: 0a1 (full)
            1   | ^b1 t50   | ask at 51
            2   | ^c1       | ask at 51
            3   | b2 t20    | ask at 23
            23  | wake      | b1 broken: timeout, b2 broken: timeout
            40  | b3        | b3 unstarted
            90  | done 0    | ask at 190
            91  | a2$       | 0: 0a2 (full)
            95  | done 0    | 0: 0c1 (full)
            1 active, 0 wait, end 1, timeout 1
        "#]],
    );
}

#[test]
fn a_batch_waits_for_slots_until_enough_are_ready_or_the_delay_is_over() {
    let strategy = SlotStrategy::Direct { queue_delay_max: Duration::from_micros(50), slots_least: 2 };
    check(
        SequencePolicy { strategy, idle_max: Duration::from_millis(1), ..direct(1, 4) },
        "0 ^a1, 10 ^b1, 20 done 0, 30 a2, 100 done 0, 101 a3, 110 drain",
        expect![[r#"
            0   | ^a1       | ask at 50
            10  | ^b1       | 0: 0a1 1b1 (preferred)
            20  | done 0    | ask at 1020
            30  | a2        | ask at 80
            80  | wake      | 0: 0a2 (delay), ask at 1020
            100 | done 0    | ask at 1020
            101 | a3        | ask at 151
            110 | drain     | 0: 0a3 (idle) ended [1]
            1 active, 0 wait, unload 1
        "#]],
    );
}

#[test]
fn slots_of_another_shape_are_left_out_and_the_oldest_goes_first() {
    check(
        direct(1, 4),
        "0 busy 0, 1 ^a1 x4, 2 ^b1 x5, 3 ^c1 x4, 10 done 0, 20 done 0, 30 done 0",
        expect![[r#"
            0   | busy 0    | -
            1   | ^a1 x4    | -
            2   | ^b1 x5    | -
            3   | ^c1 x4    | -
            10  | done 0    | 0: 0a1 1- 2c1 (idle)
            20  | done 0    | 0: 0- 1b1 (idle), ask at 120
            30  | done 0    | ask at 120
            3 active, 0 wait
        "#]],
    );
}

#[test]
fn a_lost_instance_loses_its_sequences_and_those_not_started_move_elsewhere() {
    check(
        direct(2, 1),
        "0 ^a1, 1 ^b1, 2 ^c1, 3 a2, 4 b2, 5 dead 0, 6 ^a3, 7 done 1, 8 b3$, 9 done 1, 10 back 0, 11 done 0, \
         12 done 1",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (full)
            1   | ^b1       | 1: 0b1 (full)
            2   | ^c1       | -
            3   | a2        | -
            4   | b2        | -
            5   | dead 0    | a2 broken: instance
            6   | ^a3       | -
            7   | done 1    | 1: 0b2 (full)
            8   | b3$       | -
            9   | done 1    | 1: 0b3 (full)
            10  | back 0    | 0: 0a3 (full) ended [0]
            11  | done 0    | ask at 111
            12  | done 1    | 1: 0c1 (full), ask at 111
            2 active, 0 wait, end 1, instance 1
        "#]],
    );
    check(
        direct(1, 2),
        "0 ^a1, 1 ^b1, 2 ^a2, 3 renewed 0, 4 done 0",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (idle)
            1   | ^b1       | -
            2   | ^a2       | -
            3   | renewed 0 | 0: 0a2 1b1 (full) ended [0]
            4   | done 0    | ask at 104
            2 active, 0 wait, instance 1
        "#]],
    );
}

#[test]
fn an_instance_that_leaves_keeps_its_sequences_and_one_that_comes_takes_those_that_wait() {
    check(
        direct(2, 1),
        "0 ^a1, 1 done 0, 2 leave 0, 3 ^b1, 4 ^c1, 5 a2, 6 add 3, 7 done 0, 8 a3$, 9 done 0, 10 done 1, 11 b2$, 12 ^d1, \
         13 add 0, 14 done 1, 15 leave 1, 16 stay 1, 17 ^e1",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (full)
            1   | done 0    | ask at 101
            2   | leave 0   | ask at 101
            3   | ^b1       | 1: 0b1 (full), ask at 101
            4   | ^c1       | ask at 101
            5   | a2        | 0: 0a2 (full)
            6   | add 3     | 3: 0c1 (full)
            7   | done 0    | ask at 107
            8   | a3$       | 0: 0a3 (full)
            9   | done 0    | -
            10  | done 1    | ask at 110
            11  | b2$       | 1: 0b2 (full)
            12  | ^d1       | -
            13  | add 0     | -
            14  | done 1    | 1: 0d1 (full)
            15  | leave 1   | -
            16  | stay 1    | -
            17  | ^e1       | 0: 0e1 (full)
            3 active, 0 wait, end 2
        "#]],
    );
}

#[test]
fn the_oldest_requests_are_batched_one_of_a_sequence_in_whatever_slots_they_are() {
    check(
        oldest(1, 4, 2),
        "0 busy 0, 1 ^a1, 2 ^b1, 3 ^c1, 4 a2, 5 done 0, 6 b2, 7 done 0, 8 done 0, 9 done 0, 10 c2$, 11 done 0",
        expect![[r#"
            0   | busy 0    | -
            1   | ^a1       | -
            2   | ^b1       | -
            3   | ^c1       | -
            4   | a2        | -
            5   | done 0    | 0: 0a1 1b1 (full)
            6   | b2        | -
            7   | done 0    | 0: 2c1 0a2 (full)
            8   | done 0    | 0: 1b2 (idle), ask at 108
            9   | done 0    | ask at 108
            10  | c2$       | 0: 2c2 (idle), ask at 108
            11  | done 0    | ask at 108
            2 active, 0 wait, end 1
        "#]],
    );
}

#[test]
fn the_oldest_strategy_has_the_preferred_sizes_and_delay_of_a_batcher() {
    let policy = Policy {
        rows_max: 4,
        is_batched: true,
        rows_preferred: vec![2],
        queue_delay_max: Duration::from_micros(20),
        ..Policy::default()
    };
    check(
        SequencePolicy { strategy: SlotStrategy::Oldest(policy), ..direct(1, 4) },
        "0 ^a1, 5 ^b1, 6 done 0, 7 a2, 50 done 0, 51 a3, 52 -a3, 53 b2, 54 a4, 80 done 0",
        expect![[r#"
            0   | ^a1       | ask at 20
            5   | ^b1       | 0: 0a1 1b1 (preferred)
            6   | done 0    | ask at 106
            7   | a2        | ask at 27
            27  | wake      | 0: 0a2 (delay), ask at 106
            50  | done 0    | ask at 106
            51  | a3        | ask at 71
            52  | -a3       | ask at 106
            53  | b2        | ask at 73
            54  | a4        | a4 unstarted, ask at 73
            73  | wake      | 0: 1b2 (delay) ended [0]
            80  | done 0    | ask at 180
            1 active, 0 wait, cancel 1
        "#]],
    );
}

#[test]
fn a_drain_refuses_the_backlog_and_an_unload_ends_all() {
    check(
        direct(1, 1),
        "0 ^a1, 1 ^b1, 2 a2, 3 drain, 4 done 0, 5 done 0, 6 unload, 7 a3",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (full)
            1   | ^b1       | -
            2   | a2        | -
            3   | drain     | b1 broken: unload
            4   | done 0    | 0: 0a2 (full)
            5   | done 0    | -
            6   | unload    | -
            7   | a3        | a3 unstarted
            0 active, 0 wait, unload 2
        "#]],
    );
    check(
        oldest(1, 1, 0),
        "0 ^a1, 1 ^b1, 2 -b1, 3 sweep, 4 done 0",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (idle)
            1   | ^b1       | -
            2   | -b1       | -
            3   | sweep     | -
            4   | done 0    | ask at 104
            1 active, 0 wait, cancel 1
        "#]],
    );
}

#[test]
fn a_request_of_an_iterative_sequence_runs_until_its_model_is_done_and_frees_its_slot() {
    check(
        SequencePolicy { is_iterative: true, ..direct(1, 2) },
        "0 ^a1, 1 ^b1, 2 ^c1, 10 again a1, 11 done 0, 20 again a1, 21 over b1, 22 done 0, 30 over a1, 31 done 0, \
         40 over c1",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (idle)
            1   | ^b1       | -
            2   | ^c1       | -
            10  | again a1  | -
            11  | done 0    | 0: 0a1 1b1 (full)
            20  | again a1  | -
            21  | over b1   | -
            22  | done 0    | 0: 0a1 1c1 (full) ended [1]
            30  | over a1   | -
            31  | done 0    | -
            40  | over c1   | -
            0 active, 0 wait, model 3
        "#]],
    );
}

#[test]
fn leaving_an_iterative_sequence_or_reusing_its_id_does_not_disturb_the_owner_of_its_slot() {
    check(
        SequencePolicy { is_iterative: true, ..direct(1, 1) },
        "0 ^a1, 5 ^b1, 8 -a1, 9 again a1, 10 done 0, 11 ^b2, 12 b3, 20 again b1, 21 done 0, 30 over b1, 31 done 0, \
         400 again b2, 401 dead 0, 402 back 0",
        expect![[r#"
            0   | ^a1       | 0: 0a1 (full)
            5   | ^b1       | -
            8   | -a1       | -
            9   | again a1  | -
            10  | done 0    | 0: 0b1 (full) ended [0]
            11  | ^b2       | -
            12  | b3        | -
            20  | again b1  | -
            21  | done 0    | 0: 0b1 (full)
            30  | over b1   | -
            31  | done 0    | 0: 0b2 (full) ended [0]
            400 | again b2  | -
            401 | dead 0    | b2 broken: instance, b3 broken: instance
            402 | back 0    | -
            0 active, 0 wait, cancel 1, instance 1, model 1
        "#]],
    );
}

#[test]
fn a_request_does_not_run_again_after_its_end_flag_or_a_lost_instance() {
    check(
        SequencePolicy { is_iterative: true, ..direct(1, 1) },
        "0 ^a1$, 1 done 0, 2 again a1, 3 ^b1, 4 renewed 0, 5 again b1, 6 ^c1, 7 drain, 8 done 0, 9 over c1",
        expect![[r#"
            0   | ^a1$      | 0: 0a1 (full)
            1   | done 0    | -
            2   | again a1  | a1 unstarted
            3   | ^b1       | 0: 0b1 (full)
            4   | renewed 0 | -
            5   | again b1  | b1 unstarted
            6   | ^c1       | 0: 0c1 (full) ended [0]
            7   | drain     | -
            8   | done 0    | -
            9   | over c1   | -
            0 active, 0 wait, end 1, instance 1, model 1
        "#]],
    );
}

#[test]
fn a_count_that_is_wrong_is_noticed_where_it_changes() {
    let check = |spoil: fn(&mut Sequences<char, Token>), want: &str| {
        let mut timeline = Timeline::new(direct(1, 1));
        let now = Instant::ZERO;
        for event in ["^a1", "^b1"] {
            timeline.handle_event(event, now);
        }
        spoil(&mut timeline.sequences);
        let told = crate::tests::tripped(|| drop(timeline.handle_event("^b2", now)));
        assert!(told.contains(want), "{told}, not {want}");
    };
    check(|sequences| sequences.entry_count = 7, "each request is counted");
    check(|sequences| sequences.flight_count = 1, "each request that runs is counted");
    check(|sequences| sequences.backlog.clear(), "a sequence has a slot or waits for one");
    check(|sequences| sequences.policy.slots = 2, "no sequence waits for a slot while one is free");
    check(|sequences| sequences.backlog.extend([(7, 0), (8, 0)]), "the backlog holds sequences");
}
