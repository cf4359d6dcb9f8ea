//! Parameters of `fbank`, and their checked values.

use base::error::Error;

use crate::fbank::cmvn;
use crate::fbank::window::{FrameWindow, weights};
use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::limits::{COLUMNS_MAX, FRAME_SIZE_MAX, MEL_FILTERS_MAX, SAMPLE_RATE_MAX};
use crate::mel::{FilterEdges, MelBank, kaldi, librosa};
use crate::spectrum::Spectrum;

/// The parameters.
pub const FIELDS: &[Field] = &[
    field("sample_rate", FieldKind::Integer(2, SAMPLE_RATE_MAX as i64), "16000", "The sample rate in Hz."),
    field("frame_length_ms", FieldKind::Number(0.0, 10_000.0), "25", "Milliseconds of a frame."),
    field("frame_shift_ms", FieldKind::Number(0.0, 10_000.0), "10", "Milliseconds from one frame to the next."),
    field(
        "scale",
        FieldKind::Number(f64::MIN, f64::MAX),
        "1",
        "A factor of all samples: 32768 for models that were trained on samples of 16 bits.",
    ),
    field(
        "window",
        FieldKind::Choice(&["povey", "hanning", "hann", "hamming", "blackman", "sine", "rectangular"]),
        "\"povey\"",
        "The weights of a frame: kaldi's `window_type`. `hann` is periodic, `hanning` symmetric.",
    ),
    field("blackman_coeff", FieldKind::Number(0.0, 1.0), "0.42", "For the window `blackman`."),
    field("preemphasis", FieldKind::Number(0.0, 1.0), "0.97", "kaldi's `preemph_coeff`; 0 for none."),
    field("remove_dc_offset", FieldKind::Bool, "true", "Subtracts the mean of each frame."),
    field(
        "round_to_power_of_two",
        FieldKind::Bool,
        "true",
        "Fills frames up with zeros to a power of two before the transform.",
    ),
    field(
        "snip_edges",
        FieldKind::Bool,
        "true",
        "Makes whole frames only. Otherwise there is a frame for each `frame_shift_ms`, with samples mirrored at both ends.",
    ),
    field("num_mel_bins", FieldKind::Integer(3, MEL_FILTERS_MAX as i64), "80", "Mel filters."),
    field("low_freq", FieldKind::Number(0.0, SAMPLE_RATE_MAX as f64), "20", "The lower edge of the filters in Hz."),
    field(
        "high_freq",
        FieldKind::Number(-(SAMPLE_RATE_MAX as f64), SAMPLE_RATE_MAX as f64),
        "0",
        "The upper edge of the filters in Hz; 0 and below count from half the sample rate.",
    ),
    field(
        "mel",
        FieldKind::Choice(&["kaldi", "librosa"]),
        "\"kaldi\"",
        "The filters: triangles in mels, or those of librosa (kaldi-native-fbank's `is_librosa`), in Hz and of equal area.",
    ),
    field("use_log", FieldKind::Bool, "true", "Takes the natural logarithm, of at least 1.19e-7."),
    field("use_power", FieldKind::Bool, "true", "Filters the power of the spectrum, otherwise its magnitude."),
    field(
        "use_energy",
        FieldKind::Bool,
        "false",
        "Adds the logarithm of the energy of each frame, as the first number.",
    ),
    field("energy_floor", FieldKind::Number(0.0, 1e12), "0", "The least energy; 0 for none."),
    field("raw_energy", FieldKind::Bool, "true", "Takes the energy before pre-emphasis and window."),
    field("htk_compat", FieldKind::Bool, "false", "Puts the energy last."),
    field(
        "normalize",
        FieldKind::Choice(&["none", "mean", "mean_deviation"]),
        "\"none\"",
        "Over the frames of a row, for each bin: `x - x.mean(0)`, or `(x - x.mean(0)) / (x.std(0) + 1e-5)`.",
    ),
    field("lfr_window", FieldKind::Integer(1, 64), "1", "Frames that are joined to one, as FunASR's `lfr_m`."),
    field("lfr_shift", FieldKind::Integer(1, 64), "1", "Frames from one to the next after that, as `lfr_n`."),
    field(
        "lfr_padding",
        FieldKind::Bool,
        "true",
        "Repeats the first and the last frame at the edges, as FunASR. Otherwise only whole windows are joined.",
    ),
    Field {
        name: "mean",
        kind: FieldKind::Numbers(COLUMNS_MAX),
        default: FieldDefault::Unset,
        about: "A number for each column that is subtracted last.",
    },
    Field {
        name: "std",
        kind: FieldKind::Numbers(COLUMNS_MAX),
        default: FieldDefault::Unset,
        about: "A number for each column that is divided by, after `mean`.",
    },
    Field {
        name: "cmvn_file",
        kind: FieldKind::File,
        default: FieldDefault::Unset,
        about: "An `am.mvn` of FunASR instead of `mean` and `std`: its shifts are added, then its scales are factors.",
    },
];

const fn field(name: &'static str, kind: FieldKind, default: &'static str, about: &'static str) -> Field {
    Field { name, kind, default: FieldDefault::Json(default), about }
}

/// All of a step.
pub struct FbankSettings {
    pub window: FrameWindow,
    pub spectrum: Spectrum,
    pub bank: MelBank,
    pub is_log: bool,
    pub is_power: bool,
    /// The energy of a frame; `None` without it.
    pub energy: Option<FrameEnergy>,
    pub normal: FbankNormal,
    pub stack: FrameStack,
    pub columns: ColumnNormal,
}

/// The energy among the numbers of a frame.
#[derive(Clone, Copy)]
pub struct FrameEnergy {
    pub is_last: bool,
    /// The least logarithm.
    pub floor: f32,
}

/// The normalisation over the frames of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FbankNormal {
    Mean,
    MeanDeviation,
    Off,
}

/// Frames that are joined.
#[derive(Clone, Copy)]
pub struct FrameStack {
    pub window: usize,
    pub shift: usize,
    pub pads: bool,
}

/// Numbers of the columns, of a training set.
pub enum ColumnNormal {
    /// These are subtracted, and divided by: empty ones are left out.
    Deviations(Vec<f32>, Vec<f32>),
    /// These are added, then factors.
    Scales(Vec<f32>, Vec<f32>),
}

impl FbankSettings {
    /// Checks the parameters.
    pub fn read(fields: &StepFields<'_>) -> Result<Self, Error> {
        let number = |name| fields.number(name).unwrap_or(0.0);
        let sample_rate = number("sample_rate") as f32;
        // As kaldi: rounded down in FP32.
        let samples = |name| (sample_rate * 0.001 * number(name) as f32) as usize;
        let (size, shift) = (samples("frame_length_ms"), samples("frame_shift_ms"));
        if !(2..=FRAME_SIZE_MAX).contains(&size) {
            let text = format!("makes frames of {size} samples; they must have 2 to {FRAME_SIZE_MAX}");
            return Err(fields.error("frame_length_ms", &text));
        }
        if shift == 0 {
            return Err(fields.error("frame_shift_ms", "is less than a sample"));
        }
        let padded = if fields.flag("round_to_power_of_two") { size.next_power_of_two() } else { size };
        let spectrum = Spectrum::new(padded);
        let spectrum = spectrum.ok_or_else(|| fields.error("frame_length_ms", "makes frames of an odd size"))?;
        let is_log = fields.flag("use_log");
        let energy = fields.flag("use_energy").then(|| FrameEnergy {
            is_last: fields.flag("htk_compat"),
            floor: match number("energy_floor") as f32 {
                floor if floor > 0.0 => floor.ln(),
                _ => f32::NEG_INFINITY,
            },
        });
        let stack = FrameStack {
            window: fields.count("lfr_window").unwrap_or(1),
            shift: fields.count("lfr_shift").unwrap_or(1),
            pads: fields.flag("lfr_padding"),
        };
        let bank = bank(fields, sample_rate, padded)?;
        let width = (bank.len() + usize::from(energy.is_some())) * stack.window;
        Ok(Self {
            window: FrameWindow {
                shift,
                snips_edges: fields.flag("snip_edges"),
                removes_offset: fields.flag("remove_dc_offset"),
                preemphasis: number("preemphasis") as f32,
                weights: weights(&fields.text("window"), size, f64::from(number("blackman_coeff") as f32)),
                scale: number("scale") as f32,
                is_energy_raw: fields.flag("raw_energy"),
            },
            spectrum,
            bank,
            is_log,
            is_power: fields.flag("use_power"),
            energy,
            normal: match fields.text("normalize").as_str() {
                "mean" => FbankNormal::Mean,
                "mean_deviation" => FbankNormal::MeanDeviation,
                _ => FbankNormal::Off,
            },
            stack,
            columns: columns(fields, width)?,
        })
    }

    /// Numbers of a frame before frames are joined.
    pub fn frame_width(&self) -> usize {
        self.bank.len() + usize::from(self.energy.is_some())
    }
}

/// The filters.
fn bank(fields: &StepFields<'_>, sample_rate: f32, padded: usize) -> Result<MelBank, Error> {
    let number = |name| fields.number(name).unwrap_or(0.0) as f32;
    let nyquist = 0.5 * sample_rate;
    let (low, high) = (number("low_freq"), number("high_freq"));
    let high = if high > 0.0 { high } else { nyquist + high };
    if low >= nyquist || high > nyquist || high <= low {
        let text = format!("the filters must lie between 0 and {nyquist} Hz, but they go from {low} to {high} Hz");
        return Err(fields.error("high_freq", &text));
    }
    let edges = FilterEdges { low, high, count: fields.count("num_mel_bins").unwrap_or(0) };
    let bank = match fields.text("mel").as_str() {
        "librosa" => librosa(padded, sample_rate, edges),
        _ => kaldi(padded, sample_rate, edges),
    };
    match bank.empty_filter() {
        Some(filter) => {
            let text = format!("filter {filter} covers no frequency of the spectrum: there are too many");
            Err(fields.error("num_mel_bins", &text))
        }
        None => Ok(bank),
    }
}

/// The numbers of the columns, of which there are `width`.
fn columns(fields: &StepFields<'_>, width: usize) -> Result<ColumnNormal, Error> {
    let numbers = |name: &str| -> Result<Vec<f32>, Error> {
        let numbers: Vec<f32> = fields.numbers(name).iter().map(|number| *number as f32).collect();
        check_width(fields, name, numbers.len(), width).map(|()| numbers)
    };
    let Some(file) = fields.file("cmvn_file")? else {
        return Ok(ColumnNormal::Deviations(numbers("mean")?, numbers("std")?));
    };
    if fields.is_given("mean") || fields.is_given("std") {
        return Err(fields.error("cmvn_file", "stands for \"mean\" and \"std\", which are given too"));
    }
    let (shifts, scales) = cmvn::read(&file).map_err(|why| fields.error("cmvn_file", &why))?;
    check_width(fields, "cmvn_file", shifts.len(), width)?;
    Ok(ColumnNormal::Scales(shifts, scales))
}

fn check_width(fields: &StepFields<'_>, name: &str, count: usize, width: usize) -> Result<(), Error> {
    if count == width || count == 0 && !fields.is_given(name) {
        return Ok(());
    }
    Err(fields.error(name, &format!("has {count} numbers, but there are {width} columns")))
}
