//! Traces outside of the shards: their settings at start, and the thread `traces`, which takes
//! finished records off a bounded queue and writes them to files ([`mod@file`]) or sends them to a
//! collector ([`export`]). It is started only if a setting can turn tracing on. Only the end of the
//! server waits for it, for a while.

pub mod export;
pub mod file;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use crate::control::machine::spawn::spawn;
use crate::control::outside::trace::export::TraceExporter;
use crate::control::outside::trace::file::TraceFiles;
use crate::error::Error;
use crate::limits::{TRACE_END_TIMEOUT, TRACE_RECORDS_MAX};
use crate::log;
use crate::queue::trace_queue::TraceQueue;
use crate::settings::{Settings, TraceSettings};
use crate::shard::services::trace_settings::TraceLink;
use crate::trace::{TraceLevel, TraceMode, TraceSetting, TraceTable};

/// Returns the shards' part: the settings of the command line, and the queue if tracing can be on.
pub fn trace_link(settings: &Settings) -> TraceLink {
    let trace = &settings.trace;
    let mode = if trace.is_opentelemetry { TraceMode::OpenTelemetry } else { TraceMode::Triton };
    let level = TraceLevel { timestamps: trace.timestamps, tensors: trace.tensors };
    let setting = TraceSetting::new(level, trace.rate, trace.count, trace.log_frequency, mode);
    let options = if trace.is_opentelemetry { trace.options.clone() } else { Vec::new() };
    let table = TraceTable::new(setting, &trace.file, options);
    let can_trace = trace.is_opentelemetry || !trace.file.is_empty();
    let count = if trace.is_opentelemetry { trace.records_max } else { TRACE_RECORDS_MAX };
    let queue = can_trace.then(|| Arc::new(TraceQueue::new(usize::try_from(count).unwrap_or(usize::MAX))));
    TraceLink { queue, initial: Arc::new(table), waiting: Arc::default() }
}

/// The thread that writes traces.
pub struct TraceThread {
    queue: Arc<TraceQueue>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

impl TraceThread {
    /// Starts the thread, if there is a queue.
    ///
    /// # Errors
    /// `Unavailable` when the system refuses another thread.
    pub fn start(link: &TraceLink, settings: &TraceSettings) -> Result<Option<Self>, Error> {
        let Some(queue) = link.queue.clone() else {
            if settings.timestamps || settings.tensors {
                log::warning("no request is traced: --trace-config=triton,file=FILE says where to");
            }
            return Ok(None);
        };
        let (running, ended) = channel();
        let (reader, settings) = (Arc::clone(&queue), settings.clone());
        spawn("traces".to_owned(), move || {
            // Dropped when the thread ends, which closes the channel.
            let _running = running;
            reader.records.set_reader();
            if settings.is_opentelemetry {
                TraceExporter::new(&settings).run(&reader);
            } else {
                TraceFiles::new(&settings.file).run(&reader);
            }
        })?;
        Ok(Some(Self { queue, ended }))
    }

    /// Writes the records that wait, and ends. All shards have ended by then.
    pub fn end(self) {
        self.queue.records.end();
        if self.ended.recv_timeout(TRACE_END_TIMEOUT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            log::warning("the last traces could not be written in time");
        }
    }
}
