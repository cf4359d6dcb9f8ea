//! The way in which models call the server: gives each call and each order of a model to the shard
//! with the fewest in flight. It exists before the models and the shards do, because models get it
//! when they load; until the shards run it refuses. Any thread calls it; nothing here waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::backend::gateway::{Gateway, NestedCall, NestedOrder};
use crate::error::Error;
use crate::limits::NESTED_CALLS_MAX;
use crate::shard::ServerContext;
use crate::shard::mailbox::ShardMailbox;
use crate::shard::nested_queue::{NestedWork, PushOutcome, stopping};

/// The gateway of a server. [`Self::connect`] connects it to the shards.
#[derive(Default)]
pub struct ShardGateway {
    server_context: OnceLock<Arc<ServerContext>>,
    /// The shard that is looked at first: those with equally many take turns.
    turn: AtomicUsize,
}

impl ShardGateway {
    /// Calls go to the shards of this server from now on, as soon as they run.
    pub fn connect(&self, server_context: &Arc<ServerContext>) {
        self.server_context.get_or_init(|| Arc::clone(server_context));
    }

    fn send(&self, work: NestedWork) {
        let Some(server_context) = self.server_context.get() else { return work.refuse(starting()) };
        let mut next = Some(work);
        // Ends: another round follows only when a shard has closed meanwhile, and none opens again.
        while let Some(work) = next.take() {
            let Some(mailbox) = self.choose(&server_context.control_link.mailboxes) else {
                let is_over = server_context.lifecycle.is_draining();
                return work.refuse(if is_over { stopping() } else { starting() });
            };
            match mailbox.push_nested(work) {
                PushOutcome::Pushed => {}
                PushOutcome::Back(work) => next = Some(work),
                PushOutcome::Full(work) => work.refuse(Error::unavailable(format!(
                    "models have {NESTED_CALLS_MAX} calls in flight on each shard (the limit); try again later"
                ))),
            }
        }
    }

    /// The running shard with the fewest calls in flight. All reach the same models: those on workers through the same
    /// queue, and a run inside a shard is short.
    fn choose<'a>(&self, mailboxes: &'a [ShardMailbox]) -> Option<&'a ShardMailbox> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(mailboxes.len())?;
        let (before, from) = mailboxes.split_at_checked(first)?;
        let open = from.iter().chain(before).filter(|mailbox| mailbox.nested().is_open());
        open.min_by_key(|mailbox| mailbox.nested().in_flight())
    }
}

impl Gateway for ShardGateway {
    fn infer(&self, call: NestedCall) {
        self.send(NestedWork::call(call));
    }

    fn control(&self, order: NestedOrder) {
        self.send(NestedWork::order(order));
    }
}

fn starting() -> Error {
    Error::unavailable("server is starting; BLS calls are refused until it serves")
}
