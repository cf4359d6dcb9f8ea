//! The thread of one store: runs its client, and the only tokio of the program. Scans and loads
//! hand it their jobs and wait; no shard does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::connection::tls;
use crate::control::machine::spawn::spawn;
use crate::control::repository::stores::client::{FailedRequest, StoreClient};
use crate::control::repository::stores::fault::StoreFault;
use crate::control::repository::stores::fetch::{StoreFetcher, pause};
use crate::control::repository::stores::mirror::{ObjectSource, StoreNames, WantedObject};
use crate::error::Error;
use crate::limits::STORE_ATTEMPTS_MAX;
use crate::log;
use crate::metrics::StoreCells;
use crate::model::store::StoreObject;
use crate::settings::{StoreSettings, StoreUrl};

/// The channel to a store's thread, which ends with it. Its jobs are bounded by their callers,
/// which wait: a scan, a listing and the loads.
pub struct StoreThread {
    jobs: UnboundedSender<StoreJob>,
}

type StoreReply<T> = Sender<Result<T, StoreFault>>;

enum StoreJob {
    Fetch(Vec<WantedObject>, Sender<Result<(), (String, StoreFault)>>),
    List(String, StoreReply<Vec<StoreObject>>),
    Names(StoreReply<StoreNames>),
}

impl StoreThread {
    /// Makes the client and starts the thread.
    ///
    /// # Errors
    /// `InvalidArgument` for settings and credentials that cannot be used; `Unavailable` when the system refuses a thread.
    pub fn start(url: &StoreUrl, settings: &StoreSettings, cells: &Arc<StoreCells>) -> Result<Self, Error> {
        tls::install_provider();
        let (jobs, waiting) = unbounded_channel();
        let (url, settings, cells) = (url.clone(), settings.clone(), Arc::clone(cells));
        let (made, outcome) = channel();
        spawn("store".to_owned(), move || run(&url, &settings, &cells, waiting, &made))?;
        outcome.recv().map_err(|_| Error::internal("the thread of a store has ended"))??;
        Ok(Self { jobs })
    }

    fn ask<T>(&self, job: impl FnOnce(Sender<T>) -> StoreJob) -> Option<T> {
        let (reply, outcome) = channel();
        self.jobs.send(job(reply)).ok()?;
        outcome.recv().ok()
    }
}

impl ObjectSource for StoreThread {
    fn list(&self, directory: &str) -> Result<Vec<StoreObject>, StoreFault> {
        self.ask(|reply| StoreJob::List(directory.to_owned(), reply)).unwrap_or_else(|| Err(ended()))
    }

    fn names(&self) -> Result<StoreNames, StoreFault> {
        self.ask(StoreJob::Names).unwrap_or_else(|| Err(ended()))
    }

    fn fetch(&self, wanted: Vec<WantedObject>) -> Result<(), (String, StoreFault)> {
        self.ask(|reply| StoreJob::Fetch(wanted, reply)).unwrap_or_else(|| Err((String::new(), ended())))
    }
}

fn ended() -> StoreFault {
    StoreFault::Invalid("its thread has ended".to_owned())
}

fn run(
    url: &StoreUrl,
    settings: &StoreSettings,
    cells: &Arc<StoreCells>,
    jobs: UnboundedReceiver<StoreJob>,
    made: &Sender<Result<(), Error>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::unavailable(format!("the thread of a store cannot start: {error}")));
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return drop(made.send(Err(error))),
    };
    let _context = runtime.enter();
    match StoreClient::new(url, settings) {
        Ok(client) => {
            let client = Arc::new(client);
            let gate = Arc::new(Semaphore::new(settings.connections));
            let fetcher = StoreFetcher { client, gate, cells: Arc::clone(cells) };
            let _ = made.send(Ok(()));
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, serve(fetcher, settings, jobs));
        }
        Err(fault) => drop(made.send(Err(fault.error(url, "")))),
    }
}

async fn serve(mut fetcher: StoreFetcher, settings: &StoreSettings, mut jobs: UnboundedReceiver<StoreJob>) {
    let is_denied = Arc::new(AtomicBool::new(false));
    while let Some(job) = jobs.recv().await {
        // Keys are exchanged under a server that runs: the file is read again once the store refuses the old one.
        if is_denied.swap(false, Ordering::Relaxed) {
            match StoreClient::new(&fetcher.client.url, settings) {
                Ok(client) => fetcher.client = Arc::new(client),
                Err(fault) => log::warning(fault.error(&fetcher.client.url, "").text()),
            }
        }
        let (fetcher, is_denied) = (fetcher.clone(), Arc::clone(&is_denied));
        tokio::task::spawn_local(async move {
            let note = |fault: &StoreFault| {
                if let Some(counter) = fetcher.cells.failures.get(fault.index()) {
                    counter.add(1);
                }
                is_denied.fetch_or(matches!(fault, StoreFault::Denied(_)), Ordering::Relaxed);
            };
            // The caller may have gone.
            match job {
                StoreJob::Fetch(wanted, reply) => {
                    let outcome = fetcher.fetch(wanted).await;
                    drop(reply.send(outcome.inspect_err(|(_, fault)| note(fault))));
                }
                StoreJob::List(directory, reply) => {
                    let outcome = again(&fetcher, async || fetcher.client.list(&directory).await).await;
                    drop(reply.send(outcome.inspect_err(note)));
                }
                StoreJob::Names(reply) => {
                    let outcome = again(&fetcher, async || fetcher.client.names().await).await;
                    drop(reply.send(outcome.inspect_err(note)));
                }
            }
        });
    }
}

/// Retries while that may help.
async fn again<T>(fetcher: &StoreFetcher, ask: impl AsyncFn() -> Result<T, FailedRequest>) -> Result<T, StoreFault> {
    let mut attempts = 0;
    loop {
        let failed = match ask().await {
            Ok(found) => return Ok(found),
            Err(failed) => failed,
        };
        attempts += 1;
        if attempts >= STORE_ATTEMPTS_MAX || !failed.fault.is_passing() {
            return Err(failed.fault);
        }
        fetcher.cells.retries.add(1);
        tokio::time::sleep(pause(attempts, failed.wait)).await;
    }
}
