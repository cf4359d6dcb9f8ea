//! Trace files, in Triton's JSON. Traces of a setting without a log frequency go to the file as
//! they come, which is a whole JSON document after each write. With a frequency, or with a count,
//! they are gathered in memory and go to `file.0`, `file.1` and so on: one file for each
//! `log_frequency` traces, or when the count is reached, as in Triton. The rest is written when a
//! setting is replaced, or the server ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::sync::Arc;

use crate::limits::TRACE_TEXT_SIZE_MAX;
use crate::log;
use crate::protocol::trace::file::write_record;
use crate::queue::trace_queue::TraceQueue;
use crate::runtime::clock;
use crate::trace::{TraceRecord, TraceSetting, TracedSpan};

/// The files of one name. Owned by the thread that writes them.
pub struct TraceFiles {
    path: String,
    /// The file without a number, once something was written to it.
    main: Option<File>,
    /// The number of the next file that has one.
    index: u32,
    pending: BTreeMap<usize, PendingTraces>,
    since_boot: u64,
    has_failed: bool,
}

/// The traces of one setting that were not written yet.
struct PendingTraces {
    setting: Arc<TraceSetting>,
    /// Whole traces.
    text: Vec<u8>,
    /// The number of whole traces.
    traces: u64,
    /// Traces under way, by the number of the client's request: the records of one are kept together.
    open: BTreeMap<u64, OpenTrace>,
    open_size: usize,
    spans: u64,
}

/// The records of one trace under way.
#[derive(Default)]
struct OpenTrace {
    text: Vec<u8>,
    spans: u64,
}

impl TraceFiles {
    /// Creates it without a file: the file is opened for the first trace.
    pub fn new(path: &str) -> Self {
        let since_boot = clock::monotonic_at_start();
        Self { path: path.to_owned(), main: None, index: 0, pending: BTreeMap::new(), since_boot, has_failed: false }
    }

    /// Writes records until they end.
    pub fn run(mut self, queue: &TraceQueue) {
        loop {
            let is_ending = queue.records.is_ending();
            while let Some(record) = queue.records.pop() {
                self.handle_record(&record, queue);
            }
            self.flush(is_ending, queue);
            if is_ending {
                return;
            }
            if queue.records.is_empty() {
                std::thread::park();
            }
        }
    }

    fn handle_record(&mut self, record: &TraceRecord, queue: &TraceQueue) {
        let setting = &record.trace.setting;
        let pending = self.pending.entry(Arc::as_ptr(setting).addr()).or_insert_with(|| PendingTraces::new(setting));
        pending.add(record, self.since_boot);
        if pending.is_due() {
            let (text, spans) = pending.take();
            let written = self.write_numbered(&text);
            self.count(queue, written, spans);
        } else if pending.text.len() > TRACE_TEXT_SIZE_MAX {
            self.flush(false, queue);
        }
    }

    /// Writes the traces that need not wait: those for the main file, those of settings that were
    /// replaced, those that are too large to wait, and at the end all.
    fn flush(&mut self, is_ending: bool, queue: &TraceQueue) {
        let is_over = |pending: &PendingTraces| is_ending || pending.setting.is_over();
        let mut due = Vec::new();
        for pending in self.pending.values_mut() {
            let may_wait = pending.is_gathered() && pending.text.len() <= TRACE_TEXT_SIZE_MAX;
            if is_over(pending) || !may_wait {
                if is_over(pending) {
                    pending.close_all();
                }
                let is_numbered = pending.setting.log_frequency > 0 || (pending.is_gathered() && !is_over(pending));
                if !pending.text.is_empty() {
                    due.push((is_numbered, pending.take()));
                }
            }
        }
        self.pending.retain(|_, pending| !is_over(pending));
        for (is_numbered, (text, spans)) in due {
            let written = if is_numbered { self.write_numbered(&text) } else { self.write_main(&text) };
            self.count(queue, written, spans);
        }
    }

    fn count(&mut self, queue: &TraceQueue, written: io::Result<()>, spans: u64) {
        match written {
            Ok(()) => queue.count_written(spans),
            Err(error) => {
                queue.count_dropped(spans);
                // Logged once: a full disk would fill the log too.
                if !std::mem::replace(&mut self.has_failed, true) {
                    log::error(&format!("failed creating trace file '{}': {error}; traces are lost", self.path));
                }
            }
        }
    }

    /// Appends to the main file, which is a whole document before and after.
    fn write_main(&mut self, text: &[u8]) -> io::Result<()> {
        if let Some(file) = &mut self.main {
            // Over the bracket at the end.
            file.seek(SeekFrom::End(-1))?;
            return file.write_all(&[b",", text, b"]"].concat());
        }
        let mut file = File::create(&self.path)?;
        file.write_all(&[b"[", text, b"]"].concat())?;
        self.main = Some(file);
        Ok(())
    }

    fn write_numbered(&mut self, text: &[u8]) -> io::Result<()> {
        let path = format!("{}.{}", self.path, self.index);
        self.index = self.index.saturating_add(1);
        File::create(path)?.write_all(&[b"[", text, b"]"].concat())
    }
}

impl PendingTraces {
    fn new(setting: &Arc<TraceSetting>) -> Self {
        Self {
            setting: Arc::clone(setting),
            text: Vec::new(),
            traces: 0,
            open: BTreeMap::new(),
            open_size: 0,
            spans: 0,
        }
    }

    fn add(&mut self, record: &TraceRecord, since_boot: u64) {
        let OpenTrace { text, spans } = self.open.entry(record.trace.root_id).or_default();
        let before = text.len();
        if before > 0 {
            text.push(b',');
        }
        let begin = text.len();
        write_record(record, since_boot, text);
        if text.len() == begin {
            text.truncate(before);
        }
        *spans += record.span_count();
        self.open_size += text.len() - before;
        if matches!(record.span, TracedSpan::Front(_)) {
            self.traces += 1;
            self.setting.count_collected();
            self.close(record.trace.root_id);
        }
        // Traces whose last record was dropped would stay forever.
        while self.open_size > TRACE_TEXT_SIZE_MAX
            && let Some(first) = self.open.keys().next().copied()
        {
            self.close(first);
        }
    }

    /// Closes a trace, which gets no further records.
    fn close(&mut self, root: u64) {
        let OpenTrace { text, spans } = self.open.remove(&root).unwrap_or_default();
        self.open_size -= text.len();
        self.spans += spans;
        if !self.text.is_empty() && !text.is_empty() {
            self.text.push(b',');
        }
        self.text.extend_from_slice(&text);
    }

    fn close_all(&mut self) {
        while let Some(first) = self.open.keys().next().copied() {
            self.close(first);
        }
    }

    /// Returns true if its traces wait for further ones.
    fn is_gathered(&self) -> bool {
        self.setting.log_frequency > 0 || self.setting.count_max >= 0
    }

    /// Returns true if a file is complete.
    fn is_due(&self) -> bool {
        let TraceSetting { log_frequency, count_max, .. } = *self.setting;
        let is_full = log_frequency > 0 && self.traces >= u64::from(log_frequency);
        is_full || u64::try_from(count_max).is_ok_and(|count| self.traces > 0 && self.setting.collected() >= count)
    }

    fn take(&mut self) -> (Vec<u8>, u64) {
        self.traces = 0;
        (std::mem::take(&mut self.text), std::mem::take(&mut self.spans))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use smallvec::smallvec;

    use super::*;
    use crate::time::Instant;
    use crate::trace::{ActiveTrace, FrontSpan, ModelSpan, TraceEvent, TraceLevel, TraceMode};

    const CONFIG: &[u8] = b"backend: 'identity' input { name: 'A' data_type: TYPE_INT32 dims: 1 }
        output { name: 'B' data_type: TYPE_INT32 dims: 1 }";
    const TIMESTAMPS: TraceLevel = TraceLevel { timestamps: true, tensors: false };

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("deuteron-traces-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Returns the records of a trace, whose client gave an id of this size.
    fn trace(setting: &Arc<TraceSetting>, id_size: usize) -> [TraceRecord; 2] {
        assert!(setting.sample(false));
        let trace = Arc::new(ActiveTrace::root(setting, None));
        let events = smallvec![TraceEvent { name: "HTTP_RECV_START", at: Instant::ZERO }];
        let front = FrontSpan { context: None, events, ended: Instant::ZERO, status: None };
        let spec = model::config::ConfigDraft::new("m", Some(CONFIG), &[]).unwrap();
        let rules = model::config::CompletionRules::default();
        let spec = spec.complete(None, &BTreeMap::new(), rules);
        let span = ModelSpan {
            spec: Arc::new(spec.unwrap()),
            version: 1,
            request_id: "a".repeat(id_size),
            events: smallvec![],
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let records = [TracedSpan::Model(Box::new(span)), TracedSpan::Front(front)];
        records.map(|span| TraceRecord { trace: Arc::clone(&trace), span })
    }

    fn text(path: &str) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn the_main_file_is_whole_after_each_trace_and_a_trace_is_in_one_piece() {
        let base = folder("main");
        let path = base.join("t").to_str().unwrap().to_owned();
        let setting = Arc::new(TraceSetting::new(TIMESTAMPS, 1, -1, 0, TraceMode::Triton));
        let (mut files, queue) = (TraceFiles::new(&path), TraceQueue::new(8));
        let ([first, first_end], [second, second_end]) = (trace(&setting, 1), trace(&setting, 1));
        let ids = |text: &str| -> Vec<u64> {
            let entries: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
            entries.iter().map(|entry| entry["id"].as_u64().unwrap()).collect()
        };
        let [one, two] = [first.trace.id, second.trace.id];
        for (record, want) in
            [(first, &[][..]), (second, &[]), (second_end, &[two, two]), (first_end, &[two, two, one, one])]
        {
            files.handle_record(&record, &queue);
            files.flush(false, &queue);
            let text = text(&path);
            assert_eq!(if text.is_empty() { Vec::new() } else { ids(&text) }, want);
        }
        assert_eq!(queue.counts(), (4, 0));
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn traces_that_wait_for_more_of_them_are_written_when_they_are_too_large() {
        let base = folder("large");
        let path = base.join("t").to_str().unwrap().to_owned();
        let setting = Arc::new(TraceSetting::new(TIMESTAMPS, 1, -1, 100, TraceMode::Triton));
        let (mut files, queue) = (TraceFiles::new(&path), TraceQueue::new(8));
        let mut add = |size| trace(&setting, size).iter().for_each(|record| files.handle_record(record, &queue));
        add(TRACE_TEXT_SIZE_MAX / 2);
        assert_eq!(queue.counts(), (0, 0));
        add(TRACE_TEXT_SIZE_MAX / 2);
        assert_eq!(queue.counts(), (4, 0));
        assert!(text(&format!("{path}.0")).len() > TRACE_TEXT_SIZE_MAX);
        std::fs::remove_dir_all(base).unwrap();
    }
}
