//! The task of the first shard that looks at the load for balancers, every `--metrics-interval-ms` while somebody asks:
//! no request computes what it reports.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use crate::metrics::utilization;
use crate::protocol::orca::EndpointLoad;
use crate::queue::served_model::{Placement, ServedModel};
use crate::runtime::{clock, executor};
use crate::shard::Shard;
use crate::time::Instant;

/// What was counted at a look: the load is what came since.
struct LoadLook {
    at: Instant,
    received: u64,
    /// By the address of the model version, which is compared only.
    busy: HashMap<usize, Duration>,
}

/// Looks until it is dropped.
pub async fn run(shard: Rc<Shard>) {
    let mut before: Option<LoadLook> = None;
    loop {
        executor::sleep(shard.server_context.metrics.interval).await;
        let board = &shard.server_context.metrics.load;
        if !board.take_asked() && !shard.server_context.service.tells_load {
            before = None;
            continue;
        }
        before = Some(shard.look_at_load(before.as_ref()));
    }
}

impl Shard {
    /// Counts, and writes down the load since the look before.
    fn look_at_load(&self, before: Option<&LoadLook>) -> LoadLook {
        let (served, sources) = (self.models.served(), &self.server_context.metrics);
        let key = |served: &ServedModel| std::ptr::from_ref(served).addr();
        let received = sources.shard_cells.iter().map(|cells| cells.received.get()).sum();
        let busy = served.iter().map(|served| (key(served), served.figures().busy())).collect();
        let look = LoadLook { at: clock::now(), received, busy };
        let full = served.iter().filter_map(|served| match &served.placement {
            Placement::Worker(model_queue) => Some(model_queue.fill()),
            Placement::Ensemble(_) | Placement::Inline => None,
        });
        sources.load.queue.set(Some(full.max().unwrap_or(0)));
        let Some(before) = before else { return look };
        let elapsed = look.at.since(before.at);
        let of_model = |served: &ServedModel| {
            let (now, then) = (look.busy.get(&key(served))?, before.busy.get(&key(served))?);
            let instances = match &served.placement {
                Placement::Ensemble(_) => return None,
                Placement::Inline => served.cells.len(),
                Placement::Worker(model_queue) => model_queue.parkings().len(),
            };
            Some(utilization(now.saturating_sub(*then), instances, elapsed))
        };
        sources.load.utilization.set(Some(served.iter().filter_map(|served| of_model(served)).max().unwrap_or(0)));
        let requests = u128::from(look.received.saturating_sub(before.received)) * 1_000_000;
        let rate = requests.checked_div(elapsed.as_millis()).unwrap_or(0);
        sources.load.requests_per_1000s.set(u64::try_from(rate).ok());
        look
    }

    /// The load as it was last looked at; `None` before two looks. Keeps the looks going.
    pub fn load_report(&self) -> Option<EndpointLoad> {
        let sources = &self.server_context.metrics;
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
