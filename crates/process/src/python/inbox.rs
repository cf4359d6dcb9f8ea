//! The items that other threads of the server leave for the thread of one instance: replies to
//! calls that its process made, and questions for its process. Any thread pushes; only the
//! instance's thread pops.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

use backend::ReadyReply;
use backend::gateway::{NestedReply, ReplySink};
use base::error::Error;

/// The inbox of one instance. Bounded by the calls of its process: each gets one reply, or as many
/// as [`CallState`](backend::gateway::CallState) lets be unread.
pub struct InstanceInbox {
    items: SegQueue<InboxItem>,
    wake_file: OwnedFd,
    /// True if the file was written to since the last look.
    is_signalled: AtomicBool,
}

/// An item for an instance.
pub enum InboxItem {
    /// A client asks if the model is ready.
    AskReady(ReadyReply),
    /// The reply to a model control call.
    Control(u64, Result<bool, Error>),
    /// A reply to a call of another model.
    Nested(u64, NestedReply),
}

impl InstanceInbox {
    /// An empty inbox.
    ///
    /// # Errors
    /// `Unavailable` if the process has reached its limit of descriptors.
    pub fn new() -> Result<Self, Error> {
        let wake_file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::unavailable(format!("cannot open an eventfd: {error}")))?;
        Ok(Self { items: SegQueue::new(), wake_file, is_signalled: AtomicBool::new(false) })
    }

    /// Leaves an item for the instance and wakes its thread.
    pub fn push(&self, item: InboxItem) {
        self.items.push(item);
        // The reader clears the mark before it pops: either it finds this item, or this finds the mark cleared.
        if !self.is_signalled.swap(true, Ordering::SeqCst) {
            // It cannot fail: the count is far from its end.
            let _ = write(&self.wake_file, &1_u64.to_ne_bytes());
        }
    }

    /// Called when the file was readable, before [`Self::pop`].
    pub fn handle_readable(&self) {
        let _ = read(&self.wake_file, &mut [0; 8]);
        self.is_signalled.store(false, Ordering::SeqCst);
    }

    /// The next item.
    pub fn pop(&self) -> Option<InboxItem> {
        self.items.pop()
    }

    /// Readable while there are items that were not read.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.wake_file.as_fd()
    }
}

/// The replies of one call.
pub struct CallReplies {
    /// The caller's inbox.
    pub inbox: Arc<InstanceInbox>,
    /// The number that the process gave the call.
    pub call: u64,
}

impl ReplySink for CallReplies {
    fn push(&self, reply: NestedReply) {
        self.inbox.push(InboxItem::Nested(self.call, reply));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_items_are_one_wake_up_and_none_is_missed() {
        let inbox = InstanceInbox::new().unwrap();
        (0..3).for_each(|call| inbox.push(InboxItem::Control(call, Ok(true))));
        let mut count = [0; 8];
        assert_eq!(read(&inbox.wake_file, &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), 1, "the first wakes");
        inbox.handle_readable();
        assert_eq!(std::iter::from_fn(|| inbox.pop()).count(), 3);
        inbox.push(InboxItem::Control(3, Ok(true)));
        assert_eq!(read(&inbox.wake_file, &mut count), Ok(8), "the next wakes again");
    }
}
