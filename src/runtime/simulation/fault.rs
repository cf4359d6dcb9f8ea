//! Faults that are planted to see that a simulation finds them. Those of the world around the
//! server are in its stand-ins; those of the server itself are one line each under `cfg(test)`, at
//! the place of the fault.

use std::cell::Cell;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedFault {
    /// A backend forgets a request whose client has left.
    AnswerForgotten,
    /// A connection sends some bytes twice.
    AnswerTwice,
    /// A backend gives the requests of a batch each other's answers.
    AnswersSwapped,
    /// Deadlines of clients are ignored.
    DeadlineIgnored,
    /// A shard does not learn that bytes have come.
    InputUnheard,
    /// A request that is withdrawn keeps its place in the queue.
    PlaceKept,
    /// Some receive memory is not given back.
    ReservationLeaked,
    /// A connection that ends keeps its slot.
    SlotKept,
    /// Some timers never expire.
    TimerIgnored,
    /// A worker misses that it was woken.
    WakeLost,
}

impl SimulatedFault {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::AnswerForgotten,
        Self::AnswerTwice,
        Self::AnswersSwapped,
        Self::DeadlineIgnored,
        Self::InputUnheard,
        Self::PlaceKept,
        Self::ReservationLeaked,
        Self::SlotKept,
        Self::TimerIgnored,
        Self::WakeLost,
    ];
}

thread_local! {
    static PLANTED: Cell<Option<SimulatedFault>> = const { Cell::new(None) };
}

/// Plants a fault on this thread; `None` removes it.
pub fn plant(fault: Option<SimulatedFault>) {
    PLANTED.set(fault);
}

/// Returns true if this thread has it.
pub fn is_planted(fault: SimulatedFault) -> bool {
    PLANTED.get() == Some(fault)
}
