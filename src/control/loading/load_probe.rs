//! Inputs of a trial beyond the rows of zeros that measure the model: each open axis with size 0, and, if integers of a
//! request reach sizes or divisions, their extremes. The process of the trial tells each run before it begins, so that
//! a crash shows the run at fault; the server starts it again for the remaining ones. Bounded by `PROBES_MAX` runs
//! and `PROBE_CRASHES_MAX` crashes.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Resource, Rlimit, Signal};
use smallvec::SmallVec;

use crate::backend::{Batch, Instance, Request, run_to_end, threads};
use crate::control::engines::internal_sink::InternalSink;
use crate::control::loading::loaded_version::LoadedVersion;
use crate::error::Error;
use crate::log;
use crate::model::spec::refused::RefusedAxes;
use crate::model::{ModelSpec, TensorSpec};
use crate::runtime::clock;
use crate::tensor::{AlignedBuffer, Datatype, Shape, Tensor, byte_size, element_count};

/// Sizes of 0 that a trial gives a model, one after the other: each costs a run. Models have some open axes.
const PROBES_MAX: usize = 64;
/// Crashes of a trial by such inputs after which no others are tried: each costs the load once more.
const PROBE_CRASHES_MAX: usize = 8;
/// Time of one such run after which it counts as one that never ends, beside 16 times that of a usual run. They have
/// one element or none.
const PROBE_RUN_MAX: Duration = Duration::from_secs(10);
/// Bytes that such runs may take beyond what the model has: an extreme that is a size must not fill the machine.
const PROBE_MEMORY_MAX: u64 = 1 << 30;
/// Bytes of the text in which a trial tells such runs.
const PROBE_TEXT_SIZE_MAX: u64 = 64 * 1024;

/// One input that a model is tried with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// These axes have size 0, all other open ones have 1: the index of the input, and the axis.
    Axes(Vec<(usize, usize)>),
    /// All elements of an input, by its index, have this value.
    Value(usize, i64),
}

/// Results of a trial's runs so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeFindings {
    /// The first that was not tried yet.
    next: usize,
    /// Those that the engine did not survive.
    crashed: Vec<Probe>,
}

impl Probe {
    /// Returns true if a crash by this probe implies one by the other.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Axes(axes), Self::Axes(others)) => axes.iter().all(|axis| others.contains(axis)),
            // The first of an input is enough to isolate the model.
            (Self::Value(..), Self::Value(..)) => true,
            _ => false,
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let pair = |text: &str| text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        match text.split_once(' ')? {
            ("axes", axes) => axes.split(',').map(pair).collect::<Option<_>>().map(Self::Axes),
            ("value", value) => value
                .split_once(':')
                .and_then(|(input, value)| Some(Self::Value(input.parse().ok()?, value.parse().ok()?))),
            _ => None,
        }
    }

    fn text(&self, spec: &ModelSpec) -> String {
        match self {
            Self::Axes(axes) => format!("{} of size 0", RefusedAxes(axes.clone()).text(spec)),
            Self::Value(input, value) => {
                let name = spec.inputs.get(*input).map_or("", |input| input.name.as_str());
                format!("input '{name}' full of {value}")
            }
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Axes(axes) => {
                let axes: Vec<_> = axes.iter().map(|(input, axis)| format!("{input}:{axis}")).collect();
                write!(out, "axes {}", axes.join(","))
            }
            Self::Value(input, value) => write!(out, "value {input}:{value}"),
        }
    }
}

impl ProbeFindings {
    /// The findings as a part of an order: a line each.
    pub fn encode(&self) -> String {
        let crashed: String = self.crashed.iter().map(|probe| format!("\n{probe}")).collect();
        format!("{}{crashed}", self.next)
    }

    /// Returns `None` if the text is not an encoding.
    pub fn decode(text: &str) -> Option<Self> {
        let mut lines = text.split('\n');
        let next = lines.next()?.parse().ok()?;
        Some(Self { next, crashed: lines.map(Probe::decode).collect::<Option<_>>()? })
    }

    /// The engine did not survive this one.
    pub fn handle_crash(&mut self, index: usize, probe: Probe) {
        self.next = index + 1;
        self.crashed.push(probe);
    }

    /// Returns true if no further probe is tried.
    pub fn is_over(&self) -> bool {
        self.crashed.len() >= PROBE_CRASHES_MAX
    }

    /// Returns true if the model survived everything.
    pub fn is_clean(&self) -> bool {
        self.crashed.is_empty()
    }

    /// The empty requests that the server refuses for the model.
    pub fn refused(&self) -> Vec<RefusedAxes> {
        let axes = |probe: &Probe| if let Probe::Axes(axes) = probe { Some(RefusedAxes(axes.clone())) } else { None };
        self.crashed.iter().filter_map(axes).collect()
    }

    /// The reason to isolate the model, for a crash that no check of a request prevents: a value, or too many kinds of
    /// empty inputs.
    pub fn why_isolated(&self, spec: &ModelSpec) -> Option<String> {
        let value = self.crashed.iter().find(|probe| matches!(probe, Probe::Value(..)));
        let of_value = value.map(|probe| format!("its engine did not survive {} in a trial", probe.text(spec)));
        let many = || format!("its engine did not survive {} inputs of a trial", self.crashed.len());
        of_value.or_else(|| self.is_over().then(many))
    }

    /// Says what is refused from now on.
    pub fn log(&self, spec: &ModelSpec) {
        for probe in self.crashed.iter().filter(|probe| matches!(probe, Probe::Axes(_))) {
            log::warning(&format!(
                "'{}': its engine did not survive {} in a trial; such requests are refused",
                spec.name,
                probe.text(spec)
            ));
        }
    }
}

/// The inputs to try a model with, those of size 0 first. `with_values`: integers of a request reach sizes or divisions.
fn plan(spec: &ModelSpec, with_values: bool) -> Vec<Probe> {
    let mut open: Vec<(usize, usize)> = Vec::new();
    for (index, input) in spec.inputs.iter().enumerate().filter(|(_, input)| !input.is_reshaped()) {
        // A batch of no rows is refused for every model.
        let first = usize::from(spec.has_batch_axis());
        let axes = input.model_shape.iter().enumerate().skip(first).filter(|(_, size)| **size < 0);
        open.extend(axes.map(|(axis, _)| (index, axis)));
    }
    let mut sets: Vec<Vec<(usize, usize)>> = open.iter().map(|axis| vec![*axis]).collect();
    // Axes of several inputs are often one: the time of a text and of its mask.
    for axis in open.iter().map(|(_, axis)| *axis) {
        sets.push(open.iter().copied().filter(|(_, other)| *other == axis).collect());
    }
    sets.push(open);
    let mut probes: Vec<Probe> = Vec::new();
    for set in sets.into_iter().filter(|set| !set.is_empty()) {
        let probe = Probe::Axes(set);
        if !probes.contains(&probe) {
            probes.push(probe);
        }
    }
    probes.truncate(PROBES_MAX);
    for (index, input) in spec.inputs.iter().enumerate().filter(|_| with_values) {
        let values = extremes(input.datatype).into_iter().map(|value| Probe::Value(index, value));
        probes.extend(values.take(PROBES_MAX.saturating_sub(probes.len())));
    }
    probes
}

/// The values of an integer that engines are likely to trust.
fn extremes(datatype: Datatype) -> SmallVec<[i64; 4]> {
    let (least, most) = match datatype {
        Datatype::Int8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        Datatype::Int16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        Datatype::Int32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        Datatype::Int64 => (i64::MIN, i64::MAX),
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 | Datatype::Uint64 => {
            // All bits set.
            return SmallVec::from_slice(&[0, -1]);
        }
        _ => return SmallVec::new(),
    };
    SmallVec::from_slice(&[least, most, 0, -1])
}

/// Returns true if a model is tried with such inputs: one whose inputs are those of its requests.
pub fn may_be_probed(spec: &ModelSpec) -> bool {
    let is_plain = |input: &TensorSpec| !input.is_ragged && !input.is_shape_tensor && !input.is_optional;
    spec.sequence.is_none() && spec.batch_inputs.is_empty() && spec.is_on_cpu() && spec.inputs.iter().all(is_plain)
}

/// Tries a loaded model, in the process of a trial. Each run is told in `progress`, behind what it has already.
///
/// # Errors
/// Where an instance cannot be made, or the file not be written.
pub fn run(loaded: &LoadedVersion, findings: &ProbeFindings, with_values: bool, progress: &File) -> Result<(), Error> {
    let spec = &*loaded.configured;
    let probes = plan(spec, with_values);
    if probes.is_empty() {
        return Ok(());
    }
    let written = |error: std::io::Error| Error::internal(format!("a trial cannot tell its progress: {error}"));
    let mut offset = progress.metadata().map_err(written)?.len();
    let mut tell = |text: String| {
        let told = progress.write_all_at(text.as_bytes(), offset);
        offset += text.len() as u64;
        told.map_err(written)
    };
    limit_memory();
    threads::enter(1, |threads| {
        let mut instance = loaded.model.new_instance(threads)?;
        // Measured, so that the limit fits the model.
        let began = clock::now();
        try_one(spec, &mut *instance, &Probe::Axes(Vec::new()));
        let usual = clock::now().since(began);
        let (sender, receiver) = channel::<()>();
        let limit = PROBE_RUN_MAX + usual.saturating_mul(16);
        std::thread::spawn(move || {
            watch(|| match receiver.recv_timeout(limit) {
                Ok(()) => Some(true),
                Err(RecvTimeoutError::Timeout) => Some(false),
                Err(RecvTimeoutError::Disconnected) => None,
            });
        });
        for (index, probe) in probes.iter().enumerate().skip(findings.next) {
            if findings.crashed.iter().any(|crashed| crashed.covers(probe)) {
                continue;
            }
            tell(format!("{index} {probe}\n"))?;
            let _ = sender.send(());
            try_one(spec, &mut *instance, probe);
        }
        drop(sender);
        tell(format!("{END}\n"))
    })
}

/// The last line of a trial that survived all its inputs.
const END: &str = "end";

/// Ends this process when a run takes too long; returns when no run is left.
fn watch(mut next: impl FnMut() -> Option<bool>) {
    while let Some(is_in_time) = next() {
        if !is_in_time {
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
        }
    }
}

/// An extreme that is a size fails to get its memory, and neither fills the machine nor takes long.
fn limit_memory() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let used = line.and_then(|text| text.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    let limits = rustix::process::getrlimit(Resource::Data);
    let most = limits.maximum.unwrap_or(u64::MAX);
    let wanted = used.map_or(most, |used| used.saturating_mul(1024).saturating_add(PROBE_MEMORY_MAX)).min(most);
    // Without the limit the machine's own applies.
    let _ = rustix::process::setrlimit(Resource::Data, Rlimit { current: Some(wanted), maximum: limits.maximum });
}

/// Runs a model on one input. That it answers with an error is as good as an answer.
fn try_one(spec: &ModelSpec, instance: &mut dyn Instance, probe: &Probe) {
    let inputs = spec.inputs.iter().enumerate().map(|(index, input)| tensor(spec, index, input, probe));
    let Some(inputs) = inputs.collect::<Option<Vec<_>>>() else { return };
    let sink = Arc::new(InternalSink::default());
    let requests = vec![Request { inputs, rows: 1, responder: sink.responder(0, 1), sequence: None, details: None }];
    let batch = Batch { requests, rows: 1, clock: clock::now, ended: Vec::new() };
    // A panic is caught in the server too.
    let _ = catch_unwind(AssertUnwindSafe(|| run_to_end(instance, batch)));
    drop(sink.pop());
}

fn tensor(spec: &ModelSpec, index: usize, input: &TensorSpec, probe: &Probe) -> Option<Tensor> {
    let mut shape: Shape = input.model_shape.iter().map(|size| if *size < 0 { 1 } else { *size }).collect();
    if let Some(first) = shape.first_mut().filter(|_| spec.has_batch_axis()) {
        *first = 1;
    }
    if let Probe::Axes(axes) = probe {
        for (_, axis) in axes.iter().filter(|(of, _)| *of == index) {
            *shape.get_mut(*axis)? = 0;
        }
    }
    let datatype = input.datatype;
    let size = match byte_size(datatype, &shape).ok()? {
        Some(size) => size,
        None => element_count(&shape).ok()?.checked_mul(4)?,
    };
    let mut buffer = AlignedBuffer::zeroed(size);
    if let (Probe::Value(of, value), Some(width)) = (probe, datatype.size()) {
        let bytes = value.to_le_bytes();
        let elements = buffer.as_mut_slice().chunks_exact_mut(width).filter(|_| *of == index);
        elements.for_each(|element| element.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte));
    }
    let contents: Bytes = buffer.freeze();
    Some(Tensor { datatype, shape, contents })
}

/// The run that a trial had begun when it ended, if it did not end them all. `from` is the size of its order.
pub fn unfinished(progress: &File, from: u64) -> Option<(usize, Probe)> {
    let size = progress.metadata().ok()?.len().checked_sub(from)?.min(PROBE_TEXT_SIZE_MAX);
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    progress.read_exact_at(&mut bytes, from).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (index, probe) = text.lines().last()?.split_once(' ')?;
    Some((index.parse().ok()?, Probe::decode(probe)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::trial;

    #[test]
    fn findings_and_lines_come_as_they_were_written() {
        let mut findings = ProbeFindings::default();
        assert_eq!(ProbeFindings::decode(&findings.encode()), Some(findings.clone()));
        findings.handle_crash(3, Probe::Axes(vec![(0, 1), (2, 0)]));
        findings.handle_crash(7, Probe::Value(1, i64::MIN));
        assert_eq!(ProbeFindings::decode(&findings.encode()), Some(findings.clone()));
        assert_eq!(findings.refused(), [RefusedAxes(vec![(0, 1), (2, 0)])]);
        assert!(!findings.is_over() && !findings.is_clean());
        for text in ["", "x", "1\n", "1\naxes", "1\naxes 1", "1\nvalue 1:x", "1\nother 1:1"] {
            assert_eq!(ProbeFindings::decode(text), None, "{text:?}");
        }
    }

    #[test]
    fn open_axes_are_empty_alone_by_their_place_and_all_at_once() {
        let inputs: [(&str, Datatype, &[i64]); 3] =
            [("ids", Datatype::Int64, &[-1]), ("mask", Datatype::Int64, &[-1]), ("x", Datatype::Fp32, &[3, -1])];
        let lines = |rows_max, with_values| {
            let spec = trial::spec(rows_max, &inputs, &[("y", Datatype::Fp32, &[1])]);
            plan(&spec, with_values).iter().map(Probe::to_string).collect::<Vec<_>>()
        };
        assert_eq!(lines(8, false), ["axes 0:1", "axes 1:1", "axes 2:2", "axes 0:1,1:1", "axes 0:1,1:1,2:2"]);
        assert_eq!(lines(0, false), ["axes 0:0", "axes 1:0", "axes 2:1", "axes 0:0,1:0", "axes 0:0,1:0,2:1"]);
        let values = lines(8, true);
        assert_eq!(values[5..9], [i64::MIN, i64::MAX, 0, -1].map(|value| format!("value 0:{value}")));
        assert_eq!(values.len(), 13);
    }

    #[test]
    fn a_crash_by_one_axis_covers_those_of_more_and_a_request_is_refused_by_name() {
        let one = Probe::Axes(vec![(0, 1)]);
        assert!(one.covers(&Probe::Axes(vec![(1, 1), (0, 1)])) && !one.covers(&Probe::Axes(vec![(1, 1)])));
        let mut spec = trial::spec(0, &[("x", Datatype::Fp32, &[-1, 2])], &[("y", Datatype::Fp32, &[1])]);
        let mut findings = ProbeFindings::default();
        findings.handle_crash(0, Probe::Axes(vec![(0, 0)]));
        spec.refused_axes = findings.refused();
        let tensor = |rows: i64| trial::tensor(&[rows, 2], &vec![0_f32; 2 * rows as usize]);
        assert_eq!(spec.check_axes(&[tensor(1)]), Ok(()));
        let error = spec.check_axes(&[tensor(0)]).unwrap_err();
        assert!(error.text().starts_with("axis 0 of input 'x' is of size 0 in a request to model "), "{error}");
        assert_eq!(error.code(), crate::error::Code::InvalidArgument);
    }

    #[test]
    fn the_run_that_a_trial_had_begun_is_read_back() {
        let file = File::from(rustix::fs::memfd_create("progress", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        assert_eq!(unfinished(&file, 0), None);
        file.write_all_at(b"order0 axes 0:1\n4 value 1:-1\n", 0).unwrap();
        assert_eq!(unfinished(&file, 5), Some((4, Probe::Value(1, -1))));
        file.write_all_at(b"end\n", 29).unwrap();
        assert_eq!(unfinished(&file, 5), None);
    }

    #[test]
    fn a_run_in_time_is_waited_for_and_the_end_of_all_ends_the_watch() {
        let mut left = vec![None, Some(true), Some(true)];
        watch(|| left.pop().flatten());
        assert_eq!(left, []);
    }
}
