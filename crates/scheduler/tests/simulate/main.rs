//! The simulator: the real scheduler and the real admission in a world of one thread and a clock
//! that jumps to the next wake-up. Arrivals, priorities, timeouts, cancels, instances and their
//! deaths come from a seed; after each step the promises are checked. A failure prints the seed
//! and the last 40 lines of its timeline.
//!
//! The events ([`plan`]), the world in which they happen ([`world`]), a reference for batches ([`reference`]), the same
//! for sequences ([`sequence`]), and schedulers that are wrong on purpose ([`fault`]).

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod fault;
mod plan;
mod random;
mod reference;
mod sequence;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fault::{Fault, Faulty};
use plan::Plan;
use scheduler::sequence::SequenceEnd;
use scheduler::{ReleaseReason, Scheduler};
use world::{Counts, Outcome, World};

const SCHEDULES: u64 = 200_000;
/// Number of schedules within which each planted fault shows.
const SCHEDULES_WITH_FAULT: u64 = 500;

#[test]
fn no_schedule_breaks_a_promise() {
    let mut counts = Counts::default();
    for seed in 0..SCHEDULES {
        let plan = Plan::new(seed);
        let scheduler = || Scheduler::new(plan.policy.clone());
        match World::new(&plan, scheduler()).run() {
            Ok(more) => counts.add(&more),
            Err(violation) => {
                let lines = World::new(&plan, scheduler()).with_timeline().run_to_timeline();
                panic!("seed {seed}: {violation}\n{plan:#?}\n{lines}");
            }
        }
    }
    // An outcome that never happens is not tested.
    for outcome in Outcome::ALL {
        assert!(counts.outcome(outcome) > SCHEDULES / 10, "{outcome:?} is rare: {counts:?}");
    }
    for released in ReleaseReason::ALL {
        assert!(counts.released(released) > SCHEDULES / 10, "{released:?} is rare: {counts:?}");
    }
    assert!(counts.held() > SCHEDULES / 20, "responses are rarely held: {counts:?}");
}

/// The promise that a world breaks, or the message of a failed assertion.
fn violation<T>(run: impl FnOnce() -> Result<T, String>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.err(),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        }
    }
}

#[test]
fn each_planted_fault_is_found_by_the_promise_that_it_breaks() {
    for (fault, want) in [
        (Fault::Blind, "higher priority, or earlier in its level"),
        (Fault::Deaf, "nobody wakes"),
        (Fault::Forgetful, "is in no batch"),
        (Fault::Greedy, "one batch"),
        (Fault::Hasty, "left before that of"),
        (Fault::Idle, "waits while an instance idles"),
        (Fault::Patient, "nobody wakes"),
        (Fault::Restless, "a request leaves once, after it entered"),
        (Fault::Twice, "answered twice"),
        (Fault::Undying, "its time was over"),
    ] {
        let plans = (0..SCHEDULES_WITH_FAULT).map(Plan::new);
        let found: Vec<_> = plans
            .filter_map(|plan| {
                let scheduler = Faulty::new(Scheduler::new(plan.policy.clone()), fault);
                violation(|| World::new(&plan, scheduler).run())
            })
            .collect();
        assert!(found.iter().any(|violation| violation.contains(want)), "{fault:?}: {:?}", found.first());
    }
}

#[test]
fn a_seed_is_the_same_world_each_time_and_its_timeline_has_40_lines_at_most() {
    let plan = Plan::new(7);
    let timeline = || World::new(&plan, Scheduler::new(plan.policy.clone())).with_timeline().run_to_timeline();
    assert_eq!(timeline(), timeline());
    assert!((1..=40).contains(&timeline().lines().count()));
}

fn sequence_world(plan: &sequence::plan::Plan, fault: Option<sequence::fault::Fault>) -> sequence::world::World<'_> {
    sequence::world::World::new(plan, sequence::fault::Batcher::new(&plan.policy, fault))
}

#[test]
fn no_schedule_of_sequences_lets_state_cross_ids_or_breaks_another_promise() {
    let mut counts = sequence::world::Counts::default();
    for seed in 0..SCHEDULES {
        let plan = sequence::plan::Plan::new(seed);
        match sequence_world(&plan, None).run() {
            Ok(more) => counts.add(&more),
            Err(violation) => {
                let lines = sequence_world(&plan, None).with_timeline().run_to_timeline();
                panic!("seed {seed}: {violation}\n{plan:#?}\n{lines}");
            }
        }
    }
    for outcome in sequence::world::Outcome::ALL {
        assert!(counts.outcome(outcome) > SCHEDULES / 20, "{outcome:?} is rare: {counts:?}");
    }
    // Unloads are not part of a schedule.
    for end in SequenceEnd::ALL.into_iter().filter(|end| *end != SequenceEnd::Unload) {
        assert!(counts.end(end) > SCHEDULES / 20, "{end:?} is rare: {counts:?}");
    }
    assert!(counts.empty_rows() > SCHEDULES / 10, "empty rows are rare: {counts:?}");
    assert!(counts.repeats() > SCHEDULES / 10, "requests rarely run again: {counts:?}");
}

#[test]
fn each_planted_fault_of_sequences_is_found() {
    for (fault, want) in [
        (sequence::fault::Fault::Deaf, "was never answered"),
        (sequence::fault::Fault::Endless, "has ended"),
        (sequence::fault::Fault::Eternal, "was never answered"),
        (sequence::fault::Fault::Fleeting, "was never answered"),
        (sequence::fault::Fault::Forgetful, "in no batch"),
        (sequence::fault::Fault::Immortal, "was idle"),
        (sequence::fault::Fault::Mixed, "the state of another"),
        (sequence::fault::Fault::Silent, "was never answered"),
        (sequence::fault::Fault::Sticky, "has ended"),
        (sequence::fault::Fault::Twice, "answered twice"),
        (sequence::fault::Fault::Undying, "without its state"),
    ] {
        let plans = (0..SCHEDULES_WITH_FAULT).map(sequence::plan::Plan::new);
        let found: Vec<_> = plans.filter_map(|plan| violation(|| sequence_world(&plan, Some(fault)).run())).collect();
        assert!(found.iter().any(|violation| violation.contains(want)), "{fault:?}: {:?}", found.first());
    }
}
