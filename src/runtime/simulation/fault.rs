//! Faults that are planted to see that a simulation finds them. Those of the world around the server are in its
//! stand-ins; those of the server itself are a line each under `cfg(test)`, where the fault would be.

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
    /// Nobody looks at the deadlines of clients.
    DeadlineIgnored,
    /// A shard does not hear that bytes have come.
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

/// Plants a fault on this thread, or none.
pub fn plant(fault: Option<SimulatedFault>) {
    PLANTED.set(fault);
}

/// Whether this thread has it.
pub fn is_planted(fault: SimulatedFault) -> bool {
    PLANTED.get() == Some(fault)
}
