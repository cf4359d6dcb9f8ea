//! Notes of each thread's run, in memory that a signal handler may read: an engine that crashes ends the process, and
//! its last line names the model, the version, the instance and the requests. A note is a slot of a static table,
//! written by its thread alone and read by [`signal`]; it allocates nothing after a thread's first run and takes no
//! lock. Bounded by [`CRASH_SLOTS_MAX`] threads and [`CRASH_TEXT_SIZE`] bytes each.

pub mod signal;

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::limits::{CRASH_SLOTS_MAX, CRASH_TEXT_SIZE};

/// The run of a thread.
#[derive(Clone, Copy, Debug)]
pub struct RunLabel<'a> {
    /// The model.
    pub model: &'a str,
    /// Its version; `None` in a process that is not told.
    pub version: Option<u64>,
    /// The instance, or the part of a load; empty if it has no name.
    pub instance: &'a str,
}

impl<'a> RunLabel<'a> {
    /// Of a model while it is loaded.
    pub const fn of_load(model: &'a str, version: u64) -> Self {
        Self { model, version: Some(version), instance: "its load" }
    }
}

/// Notes a run until it is dropped, also by a panic.
#[must_use]
pub struct RunNote(Option<&'static NoteSlot>);

/// The note of one thread.
struct NoteSlot {
    /// The thread that has it; 0 while it is free.
    thread: AtomicI32,
    /// Bytes of the text, and [`IS_RUNNING`].
    state: AtomicU32,
    text: [AtomicU64; WORDS],
}

/// A thread's slot, given back when the thread ends; `None` where all are taken.
struct NoteLease(Option<&'static NoteSlot>);

const WORDS: usize = CRASH_TEXT_SIZE / size_of::<u64>();
/// The flag of a slot whose run has not ended.
const IS_RUNNING: u32 = 1 << 31;

static SLOTS: [NoteSlot; CRASH_SLOTS_MAX] = [const { NoteSlot::new() }; CRASH_SLOTS_MAX];

thread_local! {
    static LEASE: NoteLease = NoteLease::claim();
}

/// Notes that this thread runs an instance on requests with these ids, of which empty ones are left out.
pub fn note<'a>(label: RunLabel<'_>, ids: impl Iterator<Item = &'a str>) -> RunNote {
    // While a thread ends, its lease may be gone.
    let slot = LEASE.try_with(|lease| lease.0).ok().flatten();
    if let Some(slot) = slot {
        let mut text = TextBuffer::new();
        text.push_label(label);
        text.push_ids(ids);
        slot.begin(&text);
    }
    RunNote(slot)
}

impl Drop for RunNote {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.state.fetch_and(!IS_RUNNING, Ordering::Release);
        }
    }
}

impl NoteSlot {
    const fn new() -> Self {
        Self { thread: AtomicI32::new(0), state: AtomicU32::new(0), text: [const { AtomicU64::new(0) }; WORDS] }
    }

    fn begin(&self, text: &TextBuffer) {
        // A crash of another thread in between shows no text rather than a mixed one.
        self.state.store(0, Ordering::Release);
        let size = u32::try_from(text.size).unwrap_or_default();
        let words = text.bytes.as_chunks().0.iter().take(text.size.div_ceil(size_of::<u64>()));
        for (place, word) in self.text.iter().zip(words) {
            place.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        self.state.store(size | IS_RUNNING, Ordering::Release);
    }

    /// The text of its run, or of its last one if `is_over`, copied to `out`. Called by a signal handler.
    fn read<'a>(&self, is_over: bool, out: &'a mut [u8; CRASH_TEXT_SIZE]) -> Option<&'a [u8]> {
        let state = self.state.load(Ordering::Acquire);
        let size = usize::try_from(state & !IS_RUNNING).ok().filter(|size| *size > 0)?;
        if is_over == (state & IS_RUNNING != 0) {
            return None;
        }
        for (place, word) in out.as_chunks_mut().0.iter_mut().zip(&self.text) {
            *place = word.load(Ordering::Relaxed).to_le_bytes();
        }
        out.get(..size)
    }
}

impl NoteLease {
    fn claim() -> Self {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let take =
            |slot: &&NoteSlot| slot.thread.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        Self(SLOTS.iter().find(take))
    }
}

impl Drop for NoteLease {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.state.store(0, Ordering::Release);
            slot.thread.store(0, Ordering::Release);
        }
    }
}

/// The text of a note while it is put together. What does not fit is cut off.
struct TextBuffer {
    bytes: [u8; CRASH_TEXT_SIZE],
    size: usize,
}

impl TextBuffer {
    const fn new() -> Self {
        Self { bytes: [0; CRASH_TEXT_SIZE], size: 0 }
    }

    fn push(&mut self, text: &str) {
        for byte in text.bytes() {
            let Some(place) = self.bytes.get_mut(self.size) else { return };
            *place = byte;
            self.size += 1;
        }
    }

    /// A text from outside: it can neither end the line nor leave its quotes, in JSON either.
    fn push_quoted(&mut self, text: &str) {
        self.push("'");
        for letter in text.chars() {
            let is_plain = matches!(letter, ' '..='~') && !matches!(letter, '\'' | '"' | '\\');
            let mut place = [0; 4];
            self.push(if is_plain { letter.encode_utf8(&mut place) } else { "?" });
        }
        self.push("'");
    }

    fn push_number(&mut self, number: u64) {
        let mut place = [0; signal::DIGITS_MAX];
        let digits = signal::decimal(number, &mut place);
        self.push(std::str::from_utf8(digits).unwrap_or_default());
    }

    fn push_label(&mut self, label: RunLabel<'_>) {
        self.push("model ");
        self.push_quoted(label.model);
        if let Some(version) = label.version {
            self.push(" version ");
            self.push_number(version);
        }
        if !label.instance.is_empty() {
            self.push(" instance ");
            self.push_quoted(label.instance);
        }
    }

    fn push_ids<'a>(&mut self, ids: impl Iterator<Item = &'a str>) {
        let mut separator = " request ";
        for id in ids.filter(|id| !id.is_empty()) {
            if self.size + separator.len() + id.len() + ELLIPSIS.len() + 2 > CRASH_TEXT_SIZE {
                return self.push(ELLIPSIS);
            }
            self.push(separator);
            self.push_quoted(id);
            separator = ", ";
        }
    }
}

/// In place of the ids that do not fit.
const ELLIPSIS: &str = ", ...";

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> &'static NoteSlot {
        LEASE.with(|lease| lease.0).unwrap()
    }

    fn text(is_over: bool) -> Option<String> {
        let mut out = [0; CRASH_TEXT_SIZE];
        own().read(is_over, &mut out).map(|text| String::from_utf8(text.to_vec()).unwrap())
    }

    #[test]
    fn a_thread_notes_its_run_and_keeps_the_text_of_the_last_one() {
        let label = RunLabel { model: "m", version: Some(u64::MAX), instance: "m_0_0" };
        let note = note(label, ["a", "", "b"].into_iter());
        let want = "model 'm' version 18446744073709551615 instance 'm_0_0' request 'a', 'b'";
        assert_eq!((text(false).as_deref(), text(true)), (Some(want), None));
        drop(note);
        assert_eq!((text(false), text(true).as_deref()), (None, Some(want)));
        let hostile = RunLabel { model: "a'\n\"\\\u{e9}", version: None, instance: "" };
        let _note = super::note(hostile, std::iter::empty());
        assert_eq!(text(false).as_deref(), Some("model 'a?????'"));
    }

    #[test]
    fn ids_that_do_not_fit_are_left_out_and_a_long_name_is_cut() {
        let label = RunLabel { model: "m", version: Some(1), instance: "" };
        let ids: Vec<String> = (0..1000).map(|index| format!("request-{index}")).collect();
        let _note = note(label, ids.iter().map(String::as_str));
        let noted = text(false).unwrap();
        assert!(noted.starts_with("model 'm' version 1 request 'request-0', 'request-1'"), "{noted}");
        assert!(noted.ends_with("', ..."), "{noted}");
        let long = "x".repeat(2 * CRASH_TEXT_SIZE);
        let _note = note(RunLabel { model: &long, ..label }, std::iter::empty());
        assert_eq!(text(false).unwrap().len(), CRASH_TEXT_SIZE);
    }

    #[test]
    fn the_slot_of_a_thread_that_ended_is_free_again() {
        let label = RunLabel { model: "m", version: None, instance: "" };
        let slot = std::thread::spawn(move || {
            let _note = note(label, std::iter::empty());
            (own(), own().thread.load(Ordering::SeqCst))
        });
        let (slot, ended) = slot.join().unwrap();
        // The thread of another test may have it by now.
        assert_ne!(slot.thread.load(Ordering::SeqCst), ended);
    }
}
