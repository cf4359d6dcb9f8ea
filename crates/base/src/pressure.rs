//! Decides what to give up as the memory of the process fills (`--memory-limit`). The machine
//! [`MemoryPressure`] is given the bytes in use and returns the [`MemoryStep`]; a [`MemoryBoard`]
//! shows it to the shards, which look at one number for each message. It gives nothing up itself
//! and reads neither clock nor memory.
//!
//! ```text
//!  0                                                     no keep-alive  no connections  no requests  close  limit
//!  ├──────────────────────────────────────────────────────────┼──────────────┼─────────────┼──────────┼───────┤
//!                                                              ◄── a unit ──► a 25th of the limit, 256 MiB at most
//! ```
//!
//! A step begins as soon as use passes its line, and ends once use has stayed half a unit below it
//! for a while.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use crate::limits::{
    MEMORY_LOOK_INTERVAL, MEMORY_LOOK_INTERVAL_NEAR, MEMORY_SETTLE_LOOKS, MEMORY_STEP_HOLD, MEMORY_STEP_PART,
    MEMORY_STEP_SIZE_MAX,
};
use crate::time::Instant;

/// The things to give up, in this order. Each step includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryStep {
    /// Nothing.
    #[default]
    Nothing,
    /// Connections end with their answer or when they are idle; cached answers are dropped; free
    /// pages go back to the system at once.
    KeepAlive,
    /// New connections get answers to everything but inference.
    Connections,
    /// New inference requests are refused.
    Requests,
    /// The connections and streams that hold the most are closed.
    Heaviest,
}

impl MemoryStep {
    /// All but [`Self::Nothing`], in their order.
    pub const ALL: [Self; 4] = [Self::KeepAlive, Self::Connections, Self::Requests, Self::Heaviest];

    /// Returns its word as a label of metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::KeepAlive => "keep_alive",
            Self::Connections => "connections",
            Self::Requests => "requests",
            Self::Heaviest => "heaviest",
        }
    }

    /// Returns the text for a person.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Nothing => "no restriction is in force",
            Self::KeepAlive => "cached answers are dropped, connections end with their answer or when they are idle",
            Self::Connections => "new connections are answered all but inference",
            Self::Requests => "new inference requests are refused",
            Self::Heaviest => "connections and streams that hold the most are closed",
        }
    }

    const fn of_number(number: u8) -> Self {
        match number {
            0 => Self::Nothing,
            1 => Self::KeepAlive,
            2 => Self::Connections,
            3 => Self::Requests,
            _ => Self::Heaviest,
        }
    }
}

/// Decides the step by the bytes in use.
#[derive(Debug)]
pub struct MemoryPressure {
    limit: usize,
    unit: usize,
    step: MemoryStep,
    used: usize,
    /// The time since when use is so low that the step may end.
    low_since: Option<Instant>,
}

impl MemoryPressure {
    /// For a process that may have `limit` bytes.
    #[inline]
    pub fn new(limit: usize) -> Self {
        let unit = (limit / MEMORY_STEP_PART).min(MEMORY_STEP_SIZE_MAX);
        Self { limit, unit, step: MemoryStep::Nothing, used: 0, low_since: None }
    }

    /// The process uses `used` bytes. Returns the step from now on.
    pub fn handle_look(&mut self, used: usize, now: Instant) -> MemoryStep {
        self.used = used;
        let passed = MemoryStep::ALL.into_iter().rev().find(|step| used >= self.line(*step)).unwrap_or_default();
        if passed > self.step {
            (self.step, self.low_since) = (passed, None);
        } else if self.step > MemoryStep::Nothing && used < self.line(self.step).saturating_sub(self.unit / 2) {
            let since = *self.low_since.get_or_insert(now);
            if now.since(since) >= MEMORY_STEP_HOLD {
                (self.step, self.low_since) = (MemoryStep::of_number(self.step as u8 - 1), Some(now));
            }
        } else {
            self.low_since = None;
        }
        self.step
    }

    /// Returns true if the step would rise with `used` bytes in use.
    #[inline]
    pub fn would_rise(&self, used: usize) -> bool {
        MemoryStep::ALL.into_iter().any(|step| step > self.step && used >= self.line(step))
    }

    /// Returns the time until the next look: short if little is left.
    #[inline]
    pub fn pause(&self) -> Duration {
        let is_near = self.step > MemoryStep::Nothing || self.used >= self.line(MemoryStep::KeepAlive) - self.unit;
        if is_near { MEMORY_LOOK_INTERVAL_NEAR } else { MEMORY_LOOK_INTERVAL }
    }

    /// Returns the bytes that requests may take until the next look without passing the line at
    /// which new ones are refused.
    #[inline]
    pub fn room(&self) -> usize {
        self.line(MemoryStep::Requests).saturating_sub(self.used)
    }

    /// Returns the bytes to give up for the last step to end.
    pub fn excess(&self) -> usize {
        match self.step {
            MemoryStep::Heaviest => self.used.saturating_sub(self.line(MemoryStep::Heaviest) - self.unit / 2),
            _ => 0,
        }
    }

    /// Returns the use at which a step begins.
    const fn line(&self, step: MemoryStep) -> usize {
        self.limit - (MemoryStep::ALL.len() + 1 - step as usize) * self.unit
    }
}

/// Shows the shards the step and the excess that the measuring thread found. Only that thread
/// writes, except for the shards' numbers about themselves. The numbers publish no other memory:
/// relaxed ordering is enough.
#[derive(Debug)]
pub struct MemoryBoard {
    limit: usize,
    step: AtomicU8,
    used: AtomicUsize,
    /// Bytes that the shards must still give up.
    excess: AtomicUsize,
    /// The number of times that each step has begun.
    begun: [AtomicUsize; MemoryStep::ALL.len()],
    /// Looks that pass until the memory of the last close is free: until then only a rise asks for
    /// more.
    settling: AtomicUsize,
    /// Loads that were refused.
    loads_refused: AtomicUsize,
    /// The bytes that the heaviest connection or stream of each shard holds.
    heaviest: Box<[AtomicUsize]>,
}

impl MemoryBoard {
    /// For a process that may have `limit` bytes, with `shards` shards.
    pub fn new(limit: usize, shards: usize) -> Self {
        Self {
            limit,
            step: AtomicU8::new(0),
            used: AtomicUsize::new(0),
            excess: AtomicUsize::new(0),
            begun: Default::default(),
            settling: AtomicUsize::new(0),
            loads_refused: AtomicUsize::new(0),
            heaviest: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// Shows the result of a look.
    pub fn show(&self, pressure: &MemoryPressure) {
        let before = self.step();
        for step in MemoryStep::ALL.into_iter().filter(|step| (before..=pressure.step).contains(step) && *step > before)
        {
            if let Some(begun) = self.begun.get(step as usize - 1) {
                begun.fetch_add(1, Ordering::Relaxed);
            }
        }
        let used_before = self.used.swap(pressure.used, Ordering::Relaxed);
        let less = |looks: usize| looks.checked_sub(1);
        let is_settling = self.settling.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if is_settling && pressure.used <= used_before {
            self.excess.fetch_min(pressure.excess(), Ordering::Relaxed);
        } else {
            self.excess.store(pressure.excess(), Ordering::Relaxed);
        }
        self.step.store(pressure.step as u8, Ordering::Relaxed);
    }

    /// Returns the step in force.
    #[inline]
    pub fn step(&self) -> MemoryStep {
        MemoryStep::of_number(self.step.load(Ordering::Relaxed))
    }

    /// Returns true if this step is in force.
    #[inline]
    pub fn gives_up(&self, step: MemoryStep) -> bool {
        self.step.load(Ordering::Relaxed) >= step as u8
    }

    /// Returns the bytes that the process may have.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the bytes in use at the last look.
    #[inline]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of times that a step has begun.
    pub fn begun(&self, step: MemoryStep) -> usize {
        (step as usize)
            .checked_sub(1)
            .and_then(|index| self.begun.get(index))
            .map_or(0, |begun| begun.load(Ordering::Relaxed))
    }

    /// A load was refused.
    #[inline]
    pub fn count_load_refused(&self) {
        self.loads_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of loads that were refused.
    #[inline]
    pub fn loads_refused(&self) -> usize {
        self.loads_refused.load(Ordering::Relaxed)
    }

    /// Returns true if a shard must close its heaviest connection or stream, of `size` bytes: there
    /// is an excess, and no shard has reported a heavier one. The closed bytes count against the
    /// excess.
    pub fn poll_close(&self, shard: usize, size: usize) -> bool {
        if let Some(own) = self.heaviest.get(shard) {
            own.store(size, Ordering::Relaxed);
        }
        let is_heaviest = self.heaviest.iter().all(|other| other.load(Ordering::Relaxed) <= size);
        let take = |excess: usize| (excess > 0).then(|| excess.saturating_sub(size));
        let is_closed =
            is_heaviest && size > 0 && self.excess.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        if is_closed {
            self.settling.store(MEMORY_SETTLE_LOOKS, Ordering::Relaxed);
        }
        is_closed
    }

    /// Returns the text for a client whose request there is no memory for.
    #[inline]
    pub fn refusal(&self) -> String {
        let limit = self.limit;
        format!("no memory for new requests: the process may have {limit} bytes (--memory-limit); try again later")
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// Lines of milliseconds and bytes in use, of 1,000. Returns each change of the step, with the
    /// room for requests.
    fn script(lines: &str) -> String {
        let (mut pressure, mut out, mut before) = (MemoryPressure::new(1_000), String::new(), MemoryStep::Nothing);
        for line in lines.lines() {
            let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().unwrap());
            let (at, used) = (numbers.next().unwrap(), numbers.next().unwrap());
            let step = pressure.handle_look(used as usize, Instant::from_micros(at * 1_000));
            if step != before {
                writeln!(out, "{at}: {} room {} excess {}", step.label(), pressure.room(), pressure.excess()).unwrap();
            }
            before = step;
        }
        out
    }

    #[test]
    fn a_step_begins_at_its_line_and_ends_a_while_after_half_a_unit_less_is_used() {
        // A unit is 40: the lines are at 840, 880, 920 and 960.
        let got = script("0 839\n 10 840\n 20 879\n 30 880\n 40 920\n 50 960\n 60 1100");
        assert_eq!(
            got,
            "10: keep_alive room 80 excess 0\n30: connections room 40 excess 0\n40: requests room 0 excess 0\n\
             50: heaviest room 0 excess 20\n"
        );
        // It goes up by as many steps as needed, and down by one at a time.
        let got = script("0 2000\n 100 940\n 200 939\n 699 0\n 700 0\n 1199 0\n 1200 0\n 1700 0\n 2200 0\n 9000 0");
        assert_eq!(
            got,
            "0: heaviest room 0 excess 1060\n700: requests room 920 excess 0\n1200: connections room 920 excess 0\n\
             1700: keep_alive room 920 excess 0\n2200: nothing room 920 excess 0\n"
        );
        let mut pressure = MemoryPressure::new(1_000);
        pressure.handle_look(890, Instant::ZERO);
        assert_eq!([839, 919, 920].map(|used| pressure.would_rise(used)), [false, false, true]);
        // Low use for a moment does not count.
        assert_eq!(
            script("0 850\n 100 819\n 500 820\n 600 819\n 1000 819\n 1099 819"),
            "0: keep_alive room 70 excess 0\n"
        );
    }

    #[test]
    fn of_a_large_limit_the_steps_are_near_its_end() {
        let mut pressure = MemoryPressure::new(64 << 30);
        assert_eq!(pressure.handle_look((63 << 30) - 1, Instant::ZERO), MemoryStep::Nothing);
        assert_eq!(pressure.pause(), MEMORY_LOOK_INTERVAL_NEAR);
        assert_eq!(pressure.handle_look(63 << 30, Instant::ZERO), MemoryStep::KeepAlive);
        assert_eq!(MemoryPressure::new(64 << 30).pause(), MEMORY_LOOK_INTERVAL);
        // And any limit has steps.
        for limit in [0, 1, 24, 25, usize::MAX] {
            assert_eq!(MemoryPressure::new(limit).handle_look(limit, Instant::ZERO), MemoryStep::Heaviest, "{limit}");
        }
    }

    #[test]
    fn the_board_shows_the_step_and_counts_each_once() {
        let (mut pressure, board) = (MemoryPressure::new(1_000), MemoryBoard::new(1_000, 1));
        for used in [0, 925, 925, 990, 0] {
            pressure.handle_look(used, Instant::ZERO);
            board.show(&pressure);
        }
        assert_eq!(MemoryStep::ALL.map(|step| board.begun(step)), [1, 1, 1, 1]);
        assert_eq!((board.step(), board.used(), board.begun(MemoryStep::Nothing)), (MemoryStep::Heaviest, 0, 0));
        assert!(board.gives_up(MemoryStep::KeepAlive) && board.gives_up(MemoryStep::Heaviest));
        assert!(board.refusal().contains("1000 bytes (--memory-limit)"));
    }

    #[test]
    fn the_shard_that_has_the_heaviest_closes_it_until_there_is_no_excess() {
        let (mut pressure, board) = (MemoryPressure::new(1_000), MemoryBoard::new(1_000, 2));
        assert!(!board.poll_close(0, 50), "there is no excess");
        pressure.handle_look(1_000, Instant::ZERO);
        board.show(&pressure);
        // 60 bytes are too many. The other shard has reported nothing yet, then more.
        assert!(board.poll_close(0, 50) && !board.poll_close(1, 40), "the other has said 50");
        assert!(!board.poll_close(0, 30) && board.poll_close(1, 40));
        assert!(!board.poll_close(1, 40), "it is enough");
        assert!(!board.poll_close(0, 0));
        // A batch may hold the closed memory for a moment: nothing else is closed unless use rises
        // further.
        let mut closes_after = |used| {
            pressure.handle_look(used, Instant::ZERO);
            board.show(&pressure);
            board.poll_close(1, 70)
        };
        assert_eq!([1_000, 1_000].map(&mut closes_after), [false, false]);
        assert!(closes_after(1_010), "it rises");
        assert!((0..MEMORY_SETTLE_LOOKS).all(|_| !closes_after(1_010)), "what was closed last is not free yet");
        assert!(closes_after(1_010), "it does not come free");
    }
}
