//! The task of the first shard that measures the load for balancers, every `--metrics-interval-ms`
//! while clients ask for it: no request computes the load that it reports.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::metrics::utilization;
use crate::protocol::orca::{self, EndpointLoad, LoadFormat};
use crate::queue::served_model::{Placement, ServedModel};
use crate::runtime::{clock, executor};
use crate::shard::{ServerContext, Shard};
use crate::time::Instant;
use crate::wire::message::Reply;

/// The counts of one measurement: the load is the difference since.
struct LoadLook {
    at: Instant,
    received: u64,
    /// Busy time by the address of the model version, which is compared only, and its instance
    /// group.
    busy: HashMap<(usize, usize), Duration>,
}

/// Measurements without a question before it stops: a client that asks now and then still gets a
/// recent load.
const LOOKS_AFTER: u32 = 10;

/// Measures until it is dropped.
pub async fn run(shard: Rc<Shard>) {
    let mut before: Option<LoadLook> = None;
    let mut unasked = LOOKS_AFTER;
    loop {
        executor::sleep(shard.server_context.metrics.interval).await;
        let board = &shard.server_context.metrics.load;
        let is_asked = board.take_asked() || shard.server_context.service.tells_load;
        unasked = if is_asked { 0 } else { (unasked + 1).min(LOOKS_AFTER) };
        if unasked == LOOKS_AFTER {
            before = None;
            // An old measurement is not reported.
            board.clear();
            continue;
        }
        before = Some(shard.server_context.look_at_load(&shard.models.served(), before.as_ref()));
    }
}

impl ServerContext {
    /// Counts, and stores the load since the last measurement.
    fn look_at_load(&self, served: &[Arc<ServedModel>], before: Option<&LoadLook>) -> LoadLook {
        let (sources, now) = (&self.metrics, clock::now());
        let received = sources.shard_cells.iter().map(|cells| cells.received.get()).sum();
        let groups = served.iter().flat_map(|served| {
            let model = Arc::as_ptr(served).addr();
            served.group_loads(now).into_iter().enumerate().map(move |(index, group)| ((model, index), group))
        });
        let groups: Vec<_> = groups.collect();
        let busy = groups.iter().map(|(key, group)| (*key, group.busy)).collect();
        let look = LoadLook { at: now, received, busy };
        let full = served.iter().filter_map(|served| match &served.placement {
            Placement::Worker(model_queue) => Some(model_queue.fill()),
            Placement::Ensemble(_) | Placement::Inline => None,
        });
        sources.load.queue.set(Some(full.max().unwrap_or(0)));
        let Some(before) = before else { return look };
        let elapsed = look.at.since(before.at);
        let shares = groups.iter().filter_map(|(key, group)| {
            let then = before.busy.get(key)?;
            Some(utilization(group.busy.saturating_sub(*then), group.instances, elapsed))
        });
        sources.load.utilization.set(Some(shares.max().unwrap_or(0)));
        let requests = u128::from(look.received.saturating_sub(before.received)) * 1_000_000;
        let rate = requests.checked_div(elapsed.as_millis()).unwrap_or(0);
        sources.load.requests_per_1000s.set(u64::try_from(rate).ok());
        look
    }

    /// Adds the load to a reply, if it is asked for and known.
    pub fn report_load(&self, reply: &mut Reply, format: Option<LoadFormat>) {
        if let Some(format) = format
            && let Some(report) = self.load_report()
        {
            reply.fields.push((orca::FIELD, Bytes::from(report.text(format))));
        }
    }

    /// The last measured load; `None` before two measurements. Keeps the measurements going.
    pub fn load_report(&self) -> Option<EndpointLoad> {
        let sources = &self.metrics;
        sources.load.ask();
        #[expect(clippy::cast_precision_loss, reason = "shares and rates, far below 2^53")]
        let divided = |value: u64, by: u64| value as f64 / by as f64;
        let host = &sources.host;
        let memory = host.memory_used.get().zip(host.memory_total.get().filter(|total| *total > 0));
        Some(EndpointLoad {
            instances: divided(sources.load.utilization.get()?, 1_000_000),
            memory: memory.map(|(used, total)| divided(used * 1_000 / total, 1_000)),
            requests_per_second: divided(sources.load.requests_per_1000s.get()?, 1_000),
            queue: divided(sources.load.queue.get().unwrap_or(0), 1_000_000),
        })
    }
}
