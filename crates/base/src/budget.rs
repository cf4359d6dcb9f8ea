//! Memory that requests take while they are received and decoded, counted before it is taken. The
//! machines ask a [`ReceiveBudget`] that the edge hands them, and hold the result as a
//! [`ReceiveReservation`], which gives it back on every path. Requests in a queue are counted by
//! the queue's own bound.
//!
//! Bytes are counted as they are written, not as they are announced: an announcement takes address
//! space and no memory, and a client that only announces must not use up the memory that others
//! need.

use std::fmt;
use std::rc::Rc;

use crate::error::{Code, Error};

/// Memory for requests. Lives on a shard.
pub trait ReceiveBudget {
    /// Reserves `size` more bytes. Returns false, and reserves nothing, if fewer are left.
    fn reserve(&self, size: usize) -> bool;

    /// Frees `size` bytes that were reserved.
    fn release(&self, size: usize);

    /// Adds `size` bytes of the same memory, which another thread reserved, to this budget.
    fn adopt(&self, size: usize);

    /// Returns the bytes that are there if no other request holds any.
    fn size_max(&self) -> usize;

    /// Returns the reason why bytes within the budget are not free now.
    fn shortage(&self) -> Shortage {
        Shortage::Busy { size_max: self.size_max() }
    }
}

/// The reason why there is no memory for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Other requests have it.
    Busy {
        /// The whole budget.
        size_max: usize,
    },
    /// The process uses nearly all memory that it may have.
    Pressed {
        /// The limit of the process.
        limit: usize,
    },
    /// The request exceeds the whole budget.
    TooLarge {
        /// Bytes that are needed.
        size: usize,
        /// The whole budget.
        size_max: usize,
    },
}

impl Shortage {
    /// Returns the text for the client.
    pub fn text(self) -> String {
        match self {
            Self::Busy { size_max } => format!(
                "no memory to receive the request: all requests that come in may take {size_max} bytes \
                 (--receive-memory-bytes-max); try again later"
            ),
            Self::Pressed { limit } => format!(
                "no memory to receive the request: the process may have {limit} bytes (--memory-limit); try again later"
            ),
            Self::TooLarge { size, size_max } => format!(
                "the request takes {size} bytes or more, and all requests that come in may take {size_max} bytes. \
                 Use --receive-memory-bytes-max to increase the limit."
            ),
        }
    }

    /// Returns true if it is over once other requests are answered.
    #[inline]
    pub const fn is_passing(self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Pressed { .. })
    }
}

impl From<Shortage> for Error {
    fn from(shortage: Shortage) -> Self {
        let code = if shortage.is_passing() { Code::Exhausted } else { Code::TooLarge };
        Self::new(code, shortage.text())
    }
}

/// Bytes of a budget, given back when this is dropped. Without a budget it counts and has no bound.
#[derive(Default)]
pub struct ReceiveReservation {
    budget: Option<Rc<dyn ReceiveBudget>>,
    size: usize,
    is_short: bool,
}

impl ReceiveReservation {
    /// An empty reservation of a budget.
    pub const fn new(budget: Option<Rc<dyn ReceiveBudget>>) -> Self {
        Self { budget, size: 0, is_short: false }
    }

    /// A reservation that counts from the `size` bytes that the same request holds elsewhere.
    pub const fn beside(size: usize, budget: Option<Rc<dyn ReceiveBudget>>) -> Self {
        Self { budget, size, is_short: false }
    }

    /// Takes over `size` bytes that another thread reserved, and its `is_short`.
    pub fn adopt(&mut self, size: usize, is_short: bool) {
        if let Some(budget) = &self.budget {
            budget.adopt(size);
        }
        self.size = self.size.saturating_add(size);
        self.is_short |= is_short;
    }

    /// Returns the bytes that it holds.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns true if more was asked for than the budget had.
    pub const fn is_short(&self) -> bool {
        self.is_short
    }

    /// Checks that `size` bytes fit the whole budget.
    pub fn check(&self, size: usize) -> Result<(), Shortage> {
        match self.budget.as_ref().map(|budget| budget.size_max()) {
            Some(size_max) if size > size_max => Err(Shortage::TooLarge { size, size_max }),
            _ => Ok(()),
        }
    }

    /// Reserves `size` more bytes.
    pub fn grow(&mut self, size: usize) -> Result<(), Shortage> {
        let total = self.size.saturating_add(size);
        if let Some(budget) = &self.budget
            && !budget.reserve(size)
        {
            self.is_short = true;
            return self.check(total).and(Err(budget.shortage()));
        }
        self.size = total;
        debug_assert!(self.check(total).is_ok(), "a budget granted more than it has: {total} bytes");
        Ok(())
    }

    /// Grows to `size` bytes, unless it is as large already.
    pub fn cover(&mut self, size: usize) -> Result<(), Shortage> {
        match size.checked_sub(self.size) {
            None | Some(0) => Ok(()),
            Some(more) => self.grow(more),
        }
    }

    /// Gives back all but `size` bytes.
    pub fn shrink_to(&mut self, size: usize) {
        if let Some(more) = self.size.checked_sub(size) {
            self.release(more);
            self.size = size;
        }
    }

    /// Splits off `size` bytes as a reservation of their own, or all if it has fewer.
    #[inline]
    pub fn split(&mut self, size: usize) -> Self {
        let size = size.min(self.size);
        self.size -= size;
        Self { budget: self.budget.clone(), size, is_short: false }
    }

    fn release(&self, size: usize) {
        if let Some(budget) = self.budget.as_ref().filter(|_| size > 0) {
            budget.release(size);
        }
    }
}

impl Drop for ReceiveReservation {
    fn drop(&mut self) {
        self.release(self.size);
    }
}

impl fmt::Debug for ReceiveReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.size)
    }
}

/// A budget of one thread, for tests.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use std::cell::Cell;

    use super::*;

    /// A budget of `size_max` bytes, and those that are reserved.
    #[derive(Debug)]
    pub struct Bytes {
        /// As many may be reserved.
        pub size_max: usize,
        /// As many are.
        pub reserved: Cell<usize>,
    }

    impl Bytes {
        /// Nothing of it is reserved yet.
        #[inline]
        pub fn new(size_max: usize) -> Rc<Self> {
            Rc::new(Self { size_max, reserved: Cell::new(0) })
        }
    }

    impl ReceiveBudget for Bytes {
        fn reserve(&self, size: usize) -> bool {
            let total = self.reserved.get() + size;
            let has_room = total <= self.size_max;
            if has_room {
                self.reserved.set(total);
            }
            has_room
        }

        fn release(&self, size: usize) {
            self.reserved.set(self.reserved.get().checked_sub(size).expect("it was reserved"));
        }

        fn adopt(&self, size: usize) {
            self.reserved.set(self.reserved.get() + size);
        }

        fn size_max(&self) -> usize {
            self.size_max
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_holds_up_to_the_bound_and_gives_all_back() {
        let bytes = testing::Bytes::new(10);
        let budget = || Some(Rc::clone(&bytes) as Rc<dyn ReceiveBudget>);
        let (mut one, mut two) = (ReceiveReservation::new(budget()), ReceiveReservation::new(budget()));
        assert_eq!((one.grow(4), two.cover(6), two.cover(5)), (Ok(()), Ok(()), Ok(())));
        assert_eq!((one.grow(1), one.size()), (Err(Shortage::Busy { size_max: 10 }), 4), "one past the bound");
        assert_eq!(one.cover(11), Err(Shortage::TooLarge { size: 11, size_max: 10 }));
        assert_eq!((one.check(10), one.check(11).is_err()), (Ok(()), true));
        let part = two.split(2);
        assert_eq!((part.size(), two.size(), bytes.reserved.get()), (2, 4, 10));
        drop(part);
        two.shrink_to(1);
        two.shrink_to(3);
        assert_eq!((two.size(), bytes.reserved.get(), one.grow(5)), (1, 5, Ok(())));
        drop((one, two));
        assert_eq!(bytes.reserved.get(), 0);
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "a budget granted more than it has: 11 bytes")]
    fn a_budget_that_grants_more_than_it_has_is_found() {
        struct Generous;
        impl ReceiveBudget for Generous {
            fn reserve(&self, _: usize) -> bool {
                true
            }

            fn release(&self, _: usize) {}

            fn adopt(&self, _: usize) {}

            fn size_max(&self) -> usize {
                10
            }
        }
        let _ = ReceiveReservation::new(Some(Rc::new(Generous))).grow(11);
    }

    #[test]
    fn a_shortage_names_the_flag_and_says_whether_to_try_again() {
        let (busy, large) = (Shortage::Busy { size_max: 9 }, Shortage::TooLarge { size: 10, size_max: 9 });
        for (shortage, code, want) in [(busy, Code::Exhausted, "later"), (large, Code::TooLarge, "increase")] {
            let error = Error::from(shortage);
            assert_eq!(error.code(), code);
            let text = error.text();
            assert!(text.contains("--receive-memory-bytes-max") && text.contains("9 bytes") && text.contains(want));
        }
    }

    #[test]
    fn without_a_budget_there_is_no_bound() {
        let mut free = ReceiveReservation::default();
        assert_eq!((free.grow(usize::MAX), free.grow(1), free.size()), (Ok(()), Ok(()), usize::MAX));
    }
}
