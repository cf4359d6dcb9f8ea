//! The whole server from a seed: the loops of shards, sessions, queues and workers as they are, on
//! a runtime that draws their order, with links that cut, delay and reset, models that fail, and
//! clients that check the server's promises. `DEUTERON_SIMULATIONS=n` sets the number of runs,
//! `DEUTERON_SIMULATION_SEED=n` replays one.

mod backend;
mod grpc_client;
mod http1_client;
mod ledger;
mod plan;
mod world;

use std::fs::File;
use std::os::fd::OwnedFd;

use crate::backend::{Threads, threads};
use crate::runtime::simulation::{self, SimulatedFault, SimulationEnd};
use crate::shard::simulation::ledger::RunResult;
use crate::shard::simulation::plan::RunPlan;

/// Runs in `cargo test`.
const RUNS: u64 = 10_000;
/// Seeds in which each planted fault is found.
const PLANTED_RUNS: u64 = 600;

/// Runs a seed.
fn simulate(seed: u64, threads: &Threads) -> RunResult {
    let plan = RunPlan::new(seed);
    // They only name the ports.
    let sockets = (0..plan.shards).map(|_| OwnedFd::from(File::open("/dev/null").unwrap())).collect();
    let failed = |text: &str| RunResult { broken: vec![text.to_owned()], ..RunResult::default() };
    match simulation::run(seed, world::run(plan, threads.clone(), sockets)) {
        Ok(result) => result,
        Err(SimulationEnd::Dry) => failed("nothing happens any more, and the run is not over"),
        Err(SimulationEnd::Endless) => failed("the run has no end"),
    }
}

#[expect(clippy::disallowed_methods, reason = "a test is told its seed by the environment")]
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Failures after which a test ends.
const FAILURES_MAX: usize = 10;

/// The report on the runs that failed, for a person: the story of the last one, and all their
/// seeds.
fn report(failed: &[(u64, Vec<String>)]) -> String {
    let mut text = String::new();
    if let Some((seed, _)) = failed.last() {
        text = format!("{}\n{}\n", RunPlan::new(*seed).describe(), simulation::recent());
    }
    for (seed, broken) in failed {
        text.push_str(&format!("DEUTERON_SIMULATION_SEED={seed} replays: {}\n", broken.join("; ")));
    }
    text
}

#[test]
fn whatever_happens_each_request_has_one_outcome_and_nothing_is_left() {
    let seeds = match variable("DEUTERON_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("DEUTERON_SIMULATIONS").unwrap_or(RUNS),
    };
    threads::enter(1, |threads| {
        let (mut failed, mut counts, is_whole) = (Vec::new(), [0; 3], seeds.clone().count() > 1_000);
        for seed in seeds {
            let result = simulate(seed, threads);
            counts.iter_mut().zip(result.counts).for_each(|(sum, count)| *sum += count);
            if !result.broken.is_empty() {
                failed.push((seed, result.broken));
            }
            if failed.len() == FAILURES_MAX {
                break;
            }
        }
        // Once more, for its story.
        failed.last().iter().for_each(|(seed, _)| drop(simulate(*seed, threads)));
        assert!(failed.is_empty(), "{}", report(&failed));
        let [answered, refused, lost] = counts;
        println!("{answered} requests were answered, {refused} refused, {lost} lost with their connections");
        assert!(
            !is_whole || answered > refused && refused > lost && lost > 0,
            "the runs are of every kind: {counts:?}"
        );
    });
}

#[test]
fn the_same_seed_is_the_same_run() {
    threads::enter(1, |threads| {
        for seed in 0..20 {
            let lines = [0; 2].map(|_| {
                simulate(seed, threads);
                simulation::recent()
            });
            assert_eq!(lines[0], lines[1], "seed {seed}");
        }
    });
}

#[test]
fn planted_faults_are_found() {
    threads::enter(1, |threads| {
        let mut missed = Vec::new();
        for fault in SimulatedFault::ALL {
            simulation::plant(Some(fault));
            let mut runs = (0..PLANTED_RUNS).map(|seed| (seed, simulate(seed, threads).broken));
            match runs.find(|(_, broken)| !broken.is_empty()) {
                Some((seed, broken)) => println!("{fault:?} is found by seed {seed}: {}", broken.join("; ")),
                None => missed.push(fault),
            }
            simulation::plant(None);
        }
        assert!(missed.is_empty(), "not found in {PLANTED_RUNS} runs: {missed:?}");
    });
}
