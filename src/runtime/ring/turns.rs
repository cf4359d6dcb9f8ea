//! Which tasks a turn runs. All that are ready at its beginning run once, and what comes meanwhile waits for the next
//! turn: ten thousand connections that end at once, or fifty that each need a millisecond, would hold up a request that
//! needs ten microseconds. Both stand aside: they run behind the others, for a part of the turn, so that they go on
//! however much there is to do. Pure: it is told how long tasks took. Bounded by the tasks, of which it knows at most
//! [`HEAVY_TASKS_MAX`] by name.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// How long those that stand aside run in each turn: short beside what a client sees, and longer than entering the kernel
/// takes, so that nothing is lost where all are such.
const PATIENT_TIME: Duration = Duration::from_micros(250);
/// Tasks that are known to be heavy. Any more are run as if they were not.
const HEAVY_TASKS_MAX: usize = 4_096;
/// A run of a task from which on it is heavy: after the second such in a row it stands aside.
const HEAVY_RUN: Duration = Duration::from_micros(100);
/// A turn from which on the times of tasks are looked at: a clock is read for each, which costs 20 ns.
const SLOW_TURN: Duration = Duration::from_micros(500);
/// How many turns they are looked at.
const MEASURED_TURNS: u32 = 64;
/// The patient have this part of the time that they have waited, where that is more than [`PATIENT_TIME`]: a quarter of all.
const PATIENT_PART: u32 = 3;

/// Names a task of one ring.
pub type TaskId = u64;

/// The tasks that are ready.
#[derive(Debug)]
pub struct ReadyTasks<T> {
    /// They run in the next turn.
    pub prompt: VecDeque<T>,
    /// They take so long, or have much to move, and run behind the others, some of them in each turn.
    pub heavy: VecDeque<(Duration, T)>,
    /// They have only their end to do, and run behind the others likewise.
    pub ending: VecDeque<T>,
}

impl<T> Default for ReadyTasks<T> {
    fn default() -> Self {
        Self { prompt: VecDeque::new(), heavy: VecDeque::new(), ending: VecDeque::new() }
    }
}

impl<T> ReadyTasks<T> {
    /// Whether none is ready.
    pub fn is_empty(&self) -> bool {
        self.prompt.is_empty() && self.patient_count() == 0
    }

    /// How many stand aside.
    pub fn patient_count(&self) -> usize {
        self.heavy.len() + self.ending.len()
    }
}

/// How long a task takes.
#[derive(Clone, Copy, Debug)]
enum Cost {
    /// It has taken long once, which whoever lost the core for a while does too: it is no reason to stand aside.
    Once,
    /// Its last run, or half of what it was before.
    Known(Duration),
}

/// What a ring has learned of its tasks.
#[derive(Debug, Default)]
pub struct TurnPolicy {
    /// In so many turns the times of tasks are still looked at.
    measured_turns: u32,
    /// How long each takes that has taken long. Many do only now and then.
    heavy: HashMap<TaskId, Cost>,
    /// Counts those of the patient that were taken.
    taken: u32,
    /// Whether the heavy task that has waited longest is the next, though others take much less.
    is_first_next: bool,
    /// How long those may still run that take much less, until it is.
    little_time: Duration,
}

impl TurnPolicy {
    /// Whether to say how long each task takes.
    pub const fn is_measuring(&self) -> bool {
        self.measured_turns > 0
    }

    /// How long a task takes that is to stand aside.
    pub fn cost(&self, task: TaskId) -> Option<Duration> {
        match self.heavy.get(&task) {
            Some(Cost::Known(cost)) if self.is_measuring() => Some(*cost),
            _ => None,
        }
    }

    /// A task has run for so long.
    pub fn handle_run(&mut self, task: TaskId, took: Duration) {
        let cost = match self.heavy.get(&task) {
            Some(Cost::Known(before)) => took.max(*before / 2),
            _ => took,
        };
        if cost < HEAVY_RUN {
            self.heavy.remove(&task);
        } else if let Some(known) = self.heavy.get_mut(&task) {
            *known = Cost::Known(cost);
        } else if self.heavy.len() < HEAVY_TASKS_MAX {
            self.heavy.insert(task, Cost::Once);
        }
    }

    /// Takes the next of the patient: every other time one that ends, else a heavy one. Those that take at most half of
    /// what the first takes, the least before, have as much time as the first, one of them at least; then it is the first's
    /// turn. So one that took long by chance, on a busy machine or with cold caches, does not wait for hundreds that always
    /// do or that end, all of them go on, and among equals nobody is overtaken.
    pub fn poll_patient<T>(&mut self, ready: &mut ReadyTasks<T>) -> Option<T> {
        self.taken = self.taken.wrapping_add(1);
        let Some((first, _)) = ready.heavy.front() else { return ready.ending.pop_front() };
        if self.taken.is_multiple_of(2) && !ready.ending.is_empty() {
            return ready.ending.pop_front();
        }
        let is_little = |(_, (cost, _)): &(usize, &(Duration, T))| *cost * 2 <= *first;
        let least = ready.heavy.iter().enumerate().filter(is_little).min_by_key(|(_, (cost, _))| *cost);
        let at = match least {
            Some((at, (cost, _))) if !self.is_first_next => {
                self.little_time = self.little_time.saturating_sub(*cost);
                self.is_first_next = self.little_time.is_zero();
                at
            }
            _ => {
                self.little_time = *first;
                self.is_first_next = false;
                0
            }
        };
        ready.heavy.remove(at).map(|(_, task)| task)
    }

    /// How long the patient, who have waited so long, may run in this turn; one of them runs in any case. None where the
    /// kernel has more to tell than it did at once, behind which may be a request, and they have not waited long for that.
    pub fn patient_time(waited: Duration, has_pending: bool) -> Option<Duration> {
        let waits = has_pending && waited < PATIENT_TIME * PATIENT_PART;
        (!waits).then(|| PATIENT_TIME.max(waited / PATIENT_PART))
    }

    /// A turn has ended after so long, perhaps with patient tasks left.
    pub fn handle_turn(&mut self, took: Duration, has_left: bool) {
        if took >= SLOW_TURN || has_left {
            self.measured_turns = MEASURED_TURNS;
        } else if self.is_measuring() {
            self.measured_turns -= 1;
            if self.measured_turns == 0 {
                *self = Self::default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// Plays turns of tasks that are ready again at once, each by its name and the microseconds that it takes; returns for
    /// the last turn what ran, in order.
    fn play(policy: &mut TurnPolicy, tasks: &[(TaskId, u64)], turns: usize) -> Vec<TaskId> {
        let time = |task: TaskId| us(tasks.iter().find(|(name, _)| *name == task).unwrap().1);
        let mut ready = ReadyTasks { prompt: tasks.iter().map(|(task, _)| *task).collect(), ..ReadyTasks::default() };
        let mut ran = Vec::new();
        for _ in 0..turns {
            ran.clear();
            let mut took = Duration::ZERO;
            for task in std::mem::take(&mut ready.prompt) {
                if let Some(cost) = policy.cost(task) {
                    ready.heavy.push_back((cost, task));
                    continue;
                }
                took += time(task);
                policy.handle_run(task, time(task));
                ran.push(task);
            }
            let most = TurnPolicy::patient_time(took, false).unwrap();
            let mut patient = Duration::ZERO;
            while patient < most
                && let Some(task) = policy.poll_patient(&mut ready)
            {
                patient += time(task);
                policy.handle_run(task, time(task));
                ran.push(task);
            }
            policy.handle_turn(took + patient, ready.patient_count() > 0);
            ready.prompt.extend(&ran);
        }
        ran
    }

    #[test]
    fn tasks_that_take_long_run_behind_the_others_and_each_gets_its_turn() {
        let mut policy = TurnPolicy::default();
        let tasks = [(1, 300), (2, 300), (3, 10), (4, 300)];
        assert_eq!(play(&mut policy, &tasks, 1), [1, 2, 3, 4], "nothing is known of them");
        assert_eq!(play(&mut policy, &tasks, 1), [1, 2, 3, 4], "once is no reason");
        assert_eq!(play(&mut policy, &tasks, 1), [3, 1], "300 µs are more than the patient have in a turn");
        let seen: Vec<_> = (2..6).map(|turns| play(&mut policy, &tasks, turns)).collect();
        assert_eq!(seen, [[3, 2], [3, 4], [3, 1], [3, 2]]);
    }

    #[test]
    fn nothing_is_measured_where_turns_are_short() {
        let mut policy = TurnPolicy::default();
        play(&mut policy, &[(1, 120), (2, 120), (3, 10)], 100);
        assert!(!policy.is_measuring());
        play(&mut policy, &[(1, 500), (2, 10)], 1);
        assert!(policy.is_measuring());
        play(&mut policy, &[(1, 99), (2, 10)], MEASURED_TURNS as usize - 1);
        assert!(policy.is_measuring());
        play(&mut policy, &[(1, 99), (2, 10)], 1);
        assert!(!policy.is_measuring() && policy.heavy.is_empty());
    }

    #[test]
    fn who_took_long_by_chance_does_not_wait_for_all_that_always_do() {
        let mut policy = TurnPolicy::default();
        let heavy = [(1, 900), (2, 1_000), (3, 1_000), (4, 110), (5, 1_000)].map(|(task, took)| (us(took), task));
        let mut ready = ReadyTasks { heavy: heavy.into(), ending: (6..=9).collect(), ..ReadyTasks::default() };
        let order: Vec<_> = std::iter::from_fn(|| policy.poll_patient(&mut ready)).collect();
        assert_eq!(order, [4, 6, 1, 7, 2, 8, 3, 9, 5]);
    }

    #[test]
    fn who_takes_little_has_as_much_time_as_who_takes_long() {
        let mut policy = TurnPolicy::default();
        let long = [1, 2, 3].map(|task| (us(5_000), task));
        let heavy = long.into_iter().chain((0..101).map(|index| (us(100), 10 + index))).collect();
        let mut ready = ReadyTasks { heavy, ..ReadyTasks::default() };
        let order: Vec<_> = std::iter::from_fn(|| policy.poll_patient(&mut ready)).collect();
        let place = |task| order.iter().position(|other| *other == task).unwrap();
        assert_eq!([1, 2, 3].map(place), [1, 52, 103], "one, and then fifty at a time");
        let little: Vec<_> = order.iter().copied().filter(|task| *task >= 10).collect();
        assert!(little.is_sorted() && little.len() == 101, "equals are not overtaken: {little:?}");
    }

    #[test]
    fn a_task_that_is_quick_a_few_times_is_prompt_again() {
        let mut policy = TurnPolicy::default();
        play(&mut policy, &[(1, 900), (2, 10)], 2);
        assert_eq!(policy.cost(1), Some(us(900)));
        // One short run says little of who took that long twice: 450, 225, 112, 56.
        for _ in 0..4 {
            assert_eq!(play(&mut policy, &[(1, 10), (2, 10)], 1), [2, 1]);
        }
        assert_eq!(play(&mut policy, &[(1, 10), (2, 10)], 1), [1, 2]);
    }

    #[test]
    fn the_patient_have_a_quarter_of_the_time_and_wait_until_all_is_known_where_that_is_soon() {
        for (waited, has_pending, want) in [
            (10, false, Some(250)),
            (9_000, false, Some(3_000)),
            (10, true, None),
            (749, true, None),
            (750, true, Some(250)),
            (9_000, true, Some(3_000)),
        ] {
            let time = TurnPolicy::patient_time(us(waited), has_pending);
            assert_eq!(time, want.map(us), "{waited} {has_pending}");
        }
    }

    #[test]
    fn no_more_tasks_are_known_by_name_than_the_bound_says() {
        let mut policy = TurnPolicy::default();
        policy.handle_turn(SLOW_TURN, false);
        for _ in 0..2 {
            (0..2 * HEAVY_TASKS_MAX as u64).for_each(|task| policy.handle_run(task, HEAVY_RUN));
        }
        assert!(
            policy.heavy.len() == HEAVY_TASKS_MAX
                && policy.cost(0) == Some(HEAVY_RUN)
                && policy.cost(HEAVY_TASKS_MAX as u64).is_none()
        );
    }
}
