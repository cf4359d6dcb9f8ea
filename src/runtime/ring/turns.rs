//! The choice of tasks that a turn runs. All that are ready at its beginning run once, and tasks
//! woken meanwhile wait for the next turn: ten thousand connections that end at once, or fifty that
//! each need a millisecond, would hold up a request that needs ten microseconds. Such tasks have
//! low priority: they run behind the interactive ones, for a part of the turn, so that they make
//! progress under any load. Pure: it is told how long tasks took. Bounded by the tasks, of which it
//! knows at most [`BULK_TASKS_MAX`] by name.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// The time in each turn for low-priority tasks: short beside a client's latency, and longer than
/// entering the kernel takes, so that nothing is lost if all tasks are such.
const LOW_PRIORITY_TIME: Duration = Duration::from_micros(250);
/// Tasks that are known to be bulk. Those beyond it run as if they were not.
const BULK_TASKS_MAX: usize = 4_096;
/// The run time from which on a task is bulk: after the second such run in a row it yields.
const BULK_RUN: Duration = Duration::from_micros(100);
/// The length of a turn from which on tasks are timed: a clock is read for each, which costs 20 ns.
const SLOW_TURN: Duration = Duration::from_micros(500);
/// Turns for which they are timed.
const MEASURED_TURNS: u32 = 64;
/// Low-priority tasks get a third of the time that they have waited, if that exceeds
/// [`LOW_PRIORITY_TIME`]: a quarter of all time.
const LOW_PRIORITY_DIVISOR: u32 = 3;

/// Names a task of one ring.
pub type TaskId = u64;

/// The tasks that are ready.
#[derive(Debug)]
pub struct ReadyTasks<T> {
    /// Tasks that run in the next turn.
    pub interactive: VecDeque<T>,
    /// Tasks that take long, or have much to move, with their cost. They run behind the interactive
    /// ones, some of them in each turn.
    pub bulk: VecDeque<(Duration, T)>,
    /// Tasks whose connection has closed, which have only to end. They run behind the interactive
    /// ones too.
    pub closing: VecDeque<T>,
}

impl<T> Default for ReadyTasks<T> {
    fn default() -> Self {
        Self { interactive: VecDeque::new(), bulk: VecDeque::new(), closing: VecDeque::new() }
    }
}

impl<T> ReadyTasks<T> {
    /// Returns true if no task is ready.
    pub fn is_empty(&self) -> bool {
        self.interactive.is_empty() && self.low_priority_count() == 0
    }

    /// Returns the number of low-priority tasks.
    pub fn low_priority_count(&self) -> usize {
        self.bulk.len() + self.closing.len()
    }
}

/// The time that a task takes.
#[derive(Clone, Copy, Debug)]
enum Cost {
    /// One slow run. Preemption looks the same, so it does not count yet.
    Once,
    /// Its last run, or half of what it was before.
    Known(Duration),
}

/// The run times of a ring's tasks so far.
#[derive(Debug, Default)]
pub struct TurnPolicy {
    /// Turns for which tasks are still timed.
    measured_turns: u32,
    /// The cost of each task that has taken long. Many do only now and then.
    bulk: HashMap<TaskId, Cost>,
    /// Counts the low-priority tasks that were taken.
    taken: u32,
    /// True if the bulk task that has waited longest is next, though others take much less.
    is_first_next: bool,
    /// The time that is left for tasks that take much less, until then.
    little_time: Duration,
}

impl TurnPolicy {
    /// Returns true if tasks are timed.
    pub const fn is_measuring(&self) -> bool {
        self.measured_turns > 0
    }

    /// Returns the cost of a task that should yield.
    pub fn cost(&self, task: TaskId) -> Option<Duration> {
        match self.bulk.get(&task) {
            Some(Cost::Known(cost)) if self.is_measuring() => Some(*cost),
            _ => None,
        }
    }

    /// A task has run for this time.
    pub fn handle_run(&mut self, task: TaskId, took: Duration) {
        let cost = match self.bulk.get(&task) {
            Some(Cost::Known(before)) => took.max(*before / 2),
            _ => took,
        };
        if cost < BULK_RUN {
            self.bulk.remove(&task);
        } else if let Some(known) = self.bulk.get_mut(&task) {
            *known = Cost::Known(cost);
        } else if self.bulk.len() < BULK_TASKS_MAX {
            self.bulk.insert(task, Cost::Once);
        }
    }

    /// Picks the next low-priority task, alternating between closing and bulk tasks. Bulk tasks that
    /// take at most half of the first one's time, the shortest first, together get as much time as
    /// the first, at least one of them; then the first is next. So a task that took long by chance,
    /// on a busy machine or with cold caches, does not wait for hundreds that always do, nor for
    /// hundreds that close. All of them make progress, and equals keep their order.
    pub fn poll_low_priority<T>(&mut self, ready: &mut ReadyTasks<T>) -> Option<T> {
        self.taken = self.taken.wrapping_add(1);
        let Some((first, _)) = ready.bulk.front() else { return ready.closing.pop_front() };
        if self.taken.is_multiple_of(2) && !ready.closing.is_empty() {
            return ready.closing.pop_front();
        }
        let is_little = |(_, (cost, _)): &(usize, &(Duration, T))| *cost * 2 <= *first;
        let least = ready.bulk.iter().enumerate().filter(is_little).min_by_key(|(_, (cost, _))| *cost);
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
        ready.bulk.remove(at).map(|(_, task)| task)
    }

    /// Returns the time for low-priority tasks in this turn, by the time that they have waited; one
    /// of them runs in any case. `None` while the kernel has more completions than it reported at
    /// once, which may hide a request, unless they have waited long.
    pub fn low_priority_time(waited: Duration, has_pending: bool) -> Option<Duration> {
        let waits = has_pending && waited < LOW_PRIORITY_TIME * LOW_PRIORITY_DIVISOR;
        (!waits).then(|| LOW_PRIORITY_TIME.max(waited / LOW_PRIORITY_DIVISOR))
    }

    /// A turn has ended after this time, perhaps with low-priority tasks left.
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

    /// Plays turns of tasks that are ready again at once, each with its name and its microseconds.
    /// Returns the order in which they ran in the last turn.
    fn play(policy: &mut TurnPolicy, tasks: &[(TaskId, u64)], turns: usize) -> Vec<TaskId> {
        let time = |task: TaskId| us(tasks.iter().find(|(name, _)| *name == task).unwrap().1);
        let mut ready =
            ReadyTasks { interactive: tasks.iter().map(|(task, _)| *task).collect(), ..ReadyTasks::default() };
        let mut ran = Vec::new();
        for _ in 0..turns {
            ran.clear();
            let mut took = Duration::ZERO;
            for task in std::mem::take(&mut ready.interactive) {
                if let Some(cost) = policy.cost(task) {
                    ready.bulk.push_back((cost, task));
                    continue;
                }
                took += time(task);
                policy.handle_run(task, time(task));
                ran.push(task);
            }
            let most = TurnPolicy::low_priority_time(took, false).unwrap();
            let mut spent = Duration::ZERO;
            while spent < most
                && let Some(task) = policy.poll_low_priority(&mut ready)
            {
                spent += time(task);
                policy.handle_run(task, time(task));
                ran.push(task);
            }
            policy.handle_turn(took + spent, ready.low_priority_count() > 0);
            ready.interactive.extend(&ran);
        }
        ran
    }

    #[test]
    fn tasks_that_take_long_run_behind_the_others_and_each_gets_its_turn() {
        let mut policy = TurnPolicy::default();
        let tasks = [(1, 300), (2, 300), (3, 10), (4, 300)];
        assert_eq!(play(&mut policy, &tasks, 1), [1, 2, 3, 4], "nothing is known of them");
        assert_eq!(play(&mut policy, &tasks, 1), [1, 2, 3, 4], "once is no reason");
        assert_eq!(play(&mut policy, &tasks, 1), [3, 1], "300 µs are more than low-priority tasks have in a turn");
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
        assert!(!policy.is_measuring() && policy.bulk.is_empty());
    }

    #[test]
    fn a_task_that_took_long_by_chance_does_not_wait_for_all_that_always_do() {
        let mut policy = TurnPolicy::default();
        let bulk = [(1, 900), (2, 1_000), (3, 1_000), (4, 110), (5, 1_000)].map(|(task, took)| (us(took), task));
        let mut ready = ReadyTasks { bulk: bulk.into(), closing: (6..=9).collect(), ..ReadyTasks::default() };
        let order: Vec<_> = std::iter::from_fn(|| policy.poll_low_priority(&mut ready)).collect();
        assert_eq!(order, [4, 6, 1, 7, 2, 8, 3, 9, 5]);
    }

    #[test]
    fn short_bulk_tasks_together_have_as_much_time_as_a_long_one() {
        let mut policy = TurnPolicy::default();
        let long = [1, 2, 3].map(|task| (us(5_000), task));
        let bulk = long.into_iter().chain((0..101).map(|index| (us(100), 10 + index))).collect();
        let mut ready = ReadyTasks { bulk, ..ReadyTasks::default() };
        let order: Vec<_> = std::iter::from_fn(|| policy.poll_low_priority(&mut ready)).collect();
        let place = |task| order.iter().position(|other| *other == task).unwrap();
        assert_eq!([1, 2, 3].map(place), [1, 52, 103], "one, and then fifty at a time");
        let little: Vec<_> = order.iter().copied().filter(|task| *task >= 10).collect();
        assert!(little.is_sorted() && little.len() == 101, "equals are not overtaken: {little:?}");
    }

    #[test]
    fn a_task_that_is_quick_a_few_times_is_interactive_again() {
        let mut policy = TurnPolicy::default();
        play(&mut policy, &[(1, 900), (2, 10)], 2);
        assert_eq!(policy.cost(1), Some(us(900)));
        // One short run says little of a task that took that long twice: 450, 225, 112, 56.
        for _ in 0..4 {
            assert_eq!(play(&mut policy, &[(1, 10), (2, 10)], 1), [2, 1]);
        }
        assert_eq!(play(&mut policy, &[(1, 10), (2, 10)], 1), [1, 2]);
    }

    #[test]
    fn low_priority_tasks_have_a_quarter_of_the_time_and_wait_briefly_for_pending_completions() {
        for (waited, has_pending, want) in [
            (10, false, Some(250)),
            (9_000, false, Some(3_000)),
            (10, true, None),
            (749, true, None),
            (750, true, Some(250)),
            (9_000, true, Some(3_000)),
        ] {
            let time = TurnPolicy::low_priority_time(us(waited), has_pending);
            assert_eq!(time, want.map(us), "{waited} {has_pending}");
        }
    }

    #[test]
    fn no_more_tasks_are_known_by_name_than_the_bound_says() {
        let mut policy = TurnPolicy::default();
        policy.handle_turn(SLOW_TURN, false);
        for _ in 0..2 {
            (0..2 * BULK_TASKS_MAX as u64).for_each(|task| policy.handle_run(task, BULK_RUN));
        }
        assert!(
            policy.bulk.len() == BULK_TASKS_MAX
                && policy.cost(0) == Some(BULK_RUN)
                && policy.cost(BULK_TASKS_MAX as u64).is_none()
        );
    }
}
