//! Kaldi's filter banks: torchaudio's function, and the objects of kaldi-native-fbank.

use std::sync::Arc;

use crate::suggest::library::quoted;
use crate::suggest::machine::{ClassInstance, Machine};
use crate::suggest::op::{Dim, ExprId, Kind, Op, SoundOp};
use crate::suggest::value::{Arguments, ArrayKind, Called, PyValue, flag_or, needed};
use base::tensor::Datatype;

/// The arguments of torchaudio's function, with the parameter of the step and the default.
const TORCHAUDIO: &[(&str, &str, FbankDefault)] = &[
    ("blackman_coeff", "blackman_coeff", FbankDefault::Number(0.42)),
    ("energy_floor", "energy_floor", FbankDefault::Number(1.0)),
    ("frame_length", "frame_length_ms", FbankDefault::Number(25.0)),
    ("frame_shift", "frame_shift_ms", FbankDefault::Number(10.0)),
    ("high_freq", "high_freq", FbankDefault::Number(0.0)),
    ("htk_compat", "htk_compat", FbankDefault::Flag(false)),
    ("low_freq", "low_freq", FbankDefault::Number(20.0)),
    ("num_mel_bins", "num_mel_bins", FbankDefault::Number(23.0)),
    ("preemphasis_coefficient", "preemphasis", FbankDefault::Number(0.97)),
    ("raw_energy", "raw_energy", FbankDefault::Flag(true)),
    ("remove_dc_offset", "remove_dc_offset", FbankDefault::Flag(true)),
    ("round_to_power_of_two", "round_to_power_of_two", FbankDefault::Flag(true)),
    ("sample_frequency", "sample_rate", FbankDefault::Number(16_000.0)),
    ("snip_edges", "snip_edges", FbankDefault::Flag(true)),
    ("use_energy", "use_energy", FbankDefault::Flag(false)),
    ("use_log_fbank", "use_log", FbankDefault::Flag(true)),
    ("use_power", "use_power", FbankDefault::Flag(true)),
    ("window_type", "window", FbankDefault::Text("povey")),
];

/// Arguments of torchaudio's function that the step has no parameter for: only these values are followed.
const TORCHAUDIO_FIXED: &[(&str, f64, &str)] = &[
    ("channel", -1.0, "another channel than the first one is taken"),
    ("dither", 0.0, "its dither adds noise, which is another one at each call"),
    ("min_duration", 0.0, "its min_duration is not followed"),
    ("vtln_warp", 1.0, "its vtln_warp is not followed"),
];

/// The options of kaldi-native-fbank: the object, its attribute, the parameter of the step, and the default.
const NATIVE: &[(&str, &str, &str, FbankDefault)] = &[
    ("frame_opts", "samp_freq", "sample_rate", FbankDefault::Number(16_000.0)),
    ("frame_opts", "frame_length_ms", "frame_length_ms", FbankDefault::Number(25.0)),
    ("frame_opts", "frame_shift_ms", "frame_shift_ms", FbankDefault::Number(10.0)),
    ("frame_opts", "preemph_coeff", "preemphasis", FbankDefault::Number(0.97)),
    ("frame_opts", "remove_dc_offset", "remove_dc_offset", FbankDefault::Flag(true)),
    ("frame_opts", "window_type", "window", FbankDefault::Text("povey")),
    ("frame_opts", "round_to_power_of_two", "round_to_power_of_two", FbankDefault::Flag(true)),
    ("frame_opts", "blackman_coeff", "blackman_coeff", FbankDefault::Number(0.42)),
    ("frame_opts", "snip_edges", "snip_edges", FbankDefault::Flag(true)),
    ("mel_opts", "num_bins", "num_mel_bins", FbankDefault::Number(23.0)),
    ("mel_opts", "low_freq", "low_freq", FbankDefault::Number(20.0)),
    ("mel_opts", "high_freq", "high_freq", FbankDefault::Number(0.0)),
    ("", "use_energy", "use_energy", FbankDefault::Flag(false)),
    ("", "energy_floor", "energy_floor", FbankDefault::Number(0.0)),
    ("", "raw_energy", "raw_energy", FbankDefault::Flag(true)),
    ("", "htk_compat", "htk_compat", FbankDefault::Flag(false)),
    ("", "use_log_fbank", "use_log", FbankDefault::Flag(true)),
    ("", "use_power", "use_power", FbankDefault::Flag(true)),
];

/// The dither of kaldi-native-fbank's options.
const NATIVE_DITHER: &str = "dither";
/// The attributes of an `OnlineFbank` that are not methods.
const NATIVE_OPTIONS: &str = "\u{0}options";
const NATIVE_FEATURES: &str = "\u{0}features";

/// The value of an option that is not given.
#[derive(Clone, Copy)]
enum FbankDefault {
    Flag(bool),
    Number(f64),
    Text(&'static str),
}

impl FbankDefault {
    fn value(self) -> PyValue {
        match self {
            Self::Flag(flag) => PyValue::Bool(flag),
            Self::Number(number) => PyValue::Float(number),
            Self::Text(text) => PyValue::text(text),
        }
    }

    /// The value in JSON, if it is of the same type.
    fn json(self, value: &PyValue) -> Option<String> {
        match (self, value) {
            (Self::Flag(_), PyValue::Bool(flag)) => Some(flag.to_string()),
            (Self::Number(_), value) => {
                let number = value.number().filter(|number| number.is_finite())?;
                Some(if number.fract() == 0.0 { format!("{number:.0}") } else { number.to_string() })
            }
            (Self::Text(_), PyValue::Text(text)) => Some(quoted(text)),
            _ => None,
        }
    }
}

/// Parameters of the step that are not its defaults.
fn parameters(options: impl Iterator<Item = (&'static str, String)>) -> Vec<(&'static str, String)> {
    let is_default = |name: &str, value: &str| {
        let field = crate::fbank::KIND.fields.iter().find(|field| field.name == name);
        field.is_some_and(|field| matches!(field.default, crate::fields::FieldDefault::Json(json) if json == value))
    };
    options.filter(|(name, value)| !is_default(name, value)).collect()
}

impl Machine<'_> {
    /// `torchaudio.compliance.kaldi.fbank`.
    pub fn kaldi_fbank(&mut self, arguments: &Arguments) -> Called {
        let [waveform] =
            Arguments { positional: arguments.positional.clone(), named: Vec::new() }.bind(["waveform"])?;
        let waveform = needed(waveform.or(arguments.named("waveform")), "waveform")?;
        for (name, value) in &arguments.named {
            let is_known = TORCHAUDIO.iter().any(|(known, ..)| known == name);
            let fixed = TORCHAUDIO_FIXED.iter().find(|(known, ..)| known == name);
            match (is_known, fixed) {
                (false, Some((_, only, why))) if value.number() != Some(*only) => return Err((*why).to_owned()),
                (false, None) if !["waveform", "subtract_mean"].contains(&name.as_str()) => {
                    return Err(format!("its argument '{name}' is not known"));
                }
                _ => {}
            }
        }
        let mut options = Vec::new();
        for (name, parameter, default) in TORCHAUDIO {
            let value = arguments.named(name).unwrap_or_else(|| default.value());
            options.push((*parameter, default.json(&value).ok_or_else(|| format!("its '{name}' is not known"))?));
        }
        let mut fields = parameters(options.into_iter());
        if flag_or(&arguments.named("subtract_mean"), false)? {
            fields.push(("normalize", quoted("mean")));
        }
        let id = self.as_array(&waveform)?;
        let [Dim::Known(1), length] = *self.graph.shape(id).as_slice() else {
            return Err("its waveform is not one channel, [1, samples]".to_owned());
        };
        let channel = self.graph.view(id, vec![length])?;
        Ok(PyValue::Array(self.filtered(channel, fields)?, ArrayKind::Torch))
    }

    /// The filter banks of samples.
    fn filtered(&mut self, samples: ExprId, fields: Vec<(&'static str, String)>) -> Result<ExprId, String> {
        self.assume("filter banks are within 1e-3 of kaldi's");
        let bins = fields.iter().find(|(name, _)| *name == "num_mel_bins").map_or("80", |(_, value)| value.as_str());
        let has_energy = fields.iter().any(|(name, value)| *name == "use_energy" && value == "true");
        let bins: u64 = bins.parse().map_err(|_| "its number of bins is not known")?;
        let columns = Dim::Known(bins + u64::from(has_energy));
        let frames = self.graph.open_size(false);
        let op = Op::Sound(SoundOp::Fbank(Arc::new(fields)));
        self.by_row(op, samples, 1, Kind::Number(Datatype::Fp32), &[frames, columns])
    }

    /// `FbankOptions` and `OnlineFbank` of kaldi-native-fbank.
    pub fn native_fbank(&mut self, name: &str, arguments: &Arguments) -> Called {
        match name {
            "FbankOptions" if arguments.positional.is_empty() && arguments.named.is_empty() => {
                let own = self.new_instance();
                for part in ["frame_opts", "mel_opts"] {
                    let of_part = self.new_instance();
                    self.set(own, part, PyValue::Instance(of_part));
                    let options = NATIVE.iter().filter(|(object, ..)| *object == part);
                    options.for_each(|(_, name, _, default)| self.set(of_part, name, default.value()));
                    if part == "frame_opts" {
                        self.set(of_part, NATIVE_DITHER, PyValue::Float(0.000_03));
                    }
                }
                let options = NATIVE.iter().filter(|(object, ..)| object.is_empty());
                options.for_each(|(_, name, _, default)| self.set(own, name, default.value()));
                Ok(PyValue::Instance(own))
            }
            "OnlineFbank" => {
                let [options] = arguments.bind(["opts"])?;
                let own = self.new_instance();
                self.set(own, NATIVE_OPTIONS, needed(options, "opts")?);
                for method in ["accept_waveform", "input_finished", "get_frame"] {
                    let value = PyValue::Method(Box::new(PyValue::Instance(own)), method.to_owned());
                    self.set(own, method, value);
                }
                Ok(PyValue::Instance(own))
            }
            _ => Err("it is not known".to_owned()),
        }
    }

    /// A method of an `OnlineFbank`.
    pub fn native_fbank_method(&mut self, own: usize, name: &str, arguments: &Arguments) -> Called {
        if self.kept.is_some_and(|(_, kept)| own < kept) {
            return Err("its state is kept from one call of execute to the next".to_owned());
        }
        let attribute = |machine: &Self, name: &str| machine.instances.get(own)?.attributes.get(name).cloned();
        match name {
            "accept_waveform" => {
                let [rate, samples] = arguments.bind(["sampling_rate", "waveform"])?;
                if attribute(self, NATIVE_FEATURES).is_some() {
                    return Err("samples that come piece by piece are not followed".to_owned());
                }
                let fields = self.native_options(&attribute(self, NATIVE_OPTIONS).unwrap_or(PyValue::Nothing))?;
                let own_rate =
                    fields.iter().find(|(name, _)| *name == "sample_rate").map_or("16000", |(_, rate)| rate.as_str());
                let rate = needed(rate, "sampling_rate")?.number().ok_or("its sampling_rate is not known")?;
                if own_rate.parse() != Ok(rate) {
                    return Err(format!("its sampling_rate is not the {own_rate} Hz of its options"));
                }
                let id = self.as_array(&needed(samples, "waveform")?)?;
                if self.graph.rank(id) != 1 {
                    return Err("its samples are not those of one channel".to_owned());
                }
                let features = self.filtered(id, fields)?;
                let frames = self.graph.shape(features).first().copied().unwrap_or(Dim::Known(0));
                self.set(own, NATIVE_FEATURES, PyValue::Array(features, ArrayKind::Numpy));
                let count = self.size(frames)?;
                self.set(own, "num_frames_ready", count);
                Ok(PyValue::Nothing)
            }
            "input_finished" => Ok(PyValue::Nothing),
            "get_frame" => {
                let [place] = arguments.bind(["frame"])?;
                let features = attribute(self, NATIVE_FEATURES).ok_or("it got no samples")?;
                self.subscript(&features, &needed(place, "frame")?)
            }
            _ => Err("it is not known".to_owned()),
        }
    }

    fn native_options(&self, options: &PyValue) -> Result<Vec<(&'static str, String)>, String> {
        let unknown = || "its options are not known".to_owned();
        let attribute = |object: &PyValue, name: &str| match object {
            PyValue::Instance(id) => self.instances.get(*id)?.attributes.get(name).cloned(),
            _ => None,
        };
        let frame = attribute(options, "frame_opts").ok_or_else(unknown)?;
        let dither = attribute(&frame, NATIVE_DITHER).and_then(|dither| dither.number());
        if dither != Some(0.0) {
            return Err("its dither is not 0: it adds noise, which is another one at each call".to_owned());
        }
        let mut known = Vec::new();
        for (object, name, parameter, default) in NATIVE {
            let holder = match *object {
                "" => options.clone(),
                object => attribute(options, object).ok_or_else(unknown)?,
            };
            let value = attribute(&holder, name).and_then(|value| default.json(&value));
            known.push((*parameter, value.ok_or_else(|| format!("its option '{name}' is not known"))?));
        }
        for (object, part) in [(options.clone(), ""), (frame, "frame_opts")] {
            let PyValue::Instance(id) = object else { return Err(unknown()) };
            let names = self.instances.get(id).into_iter().flat_map(|instance| instance.attributes.keys());
            let is_known = |name: &str| {
                let is_part = ["frame_opts", "mel_opts", NATIVE_DITHER].contains(&name);
                is_part || NATIVE.iter().any(|(object, known, ..)| *object == part && *known == name)
            };
            if let Some(other) = names.into_iter().find(|name| !is_known(name)) {
                return Err(format!("its option '{other}' has no parameter"));
            }
        }
        Ok(parameters(known.into_iter()))
    }

    /// An object of a library whose attributes can be set.
    fn new_instance(&mut self) -> usize {
        // No node has this place: the object has no class in the file.
        self.instances.push(ClassInstance { class: usize::MAX, attributes: Default::default() });
        self.instances.len() - 1
    }

    fn set(&mut self, instance: usize, name: &str, value: PyValue) {
        if let Some(instance) = self.instances.get_mut(instance) {
            instance.attributes.insert(name.to_owned(), value);
        }
    }
}
