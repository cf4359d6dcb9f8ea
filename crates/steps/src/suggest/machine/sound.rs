//! Sounds: soundfile, librosa, torchaudio, scipy's resampling and the extractor of Whisper.

use crate::suggest::machine::Machine;
use crate::suggest::op::{Dim, ExprId, Kind, Op, SoundOp};
use crate::suggest::value::{Arguments, ArrayKind, Called, Object, PyValue, flag_or, needed};
use base::tensor::Datatype;

/// The sample rate of a sound.
#[derive(Clone, Copy, PartialEq)]
enum SoundRate {
    /// That of the file.
    OfFile(ExprId),
    Known(u64),
}

impl Machine<'_> {
    pub fn call_sound(&mut self, path: &str, arguments: &Arguments) -> Called {
        match path {
            "soundfile.read" => {
                let [file, dtype, always_2d] = arguments.bind(["file", "dtype", "always_2d"])?;
                if flag_or(&always_2d, false)? {
                    return Err("its always_2d is not followed".to_owned());
                }
                let datatype = match dtype {
                    None => Datatype::Fp64,
                    Some(PyValue::Text(name)) if name == "float64" => Datatype::Fp64,
                    Some(PyValue::Text(name)) if name == "float32" => Datatype::Fp32,
                    Some(_) => return Err("its dtype is not float32 or float64".to_owned()),
                };
                let samples = self.sound(&needed(file, "file")?, datatype)?;
                self.with_rate(samples, samples, ArrayKind::Numpy)
            }
            "librosa.load" => {
                let [file, rate, mono] = arguments.bind(["path", "sr", "mono"])?;
                if !flag_or(&mono, true)? {
                    return Err("only 'mono' is followed".to_owned());
                }
                let samples = self.sound(&needed(file, "path")?, Datatype::Fp32)?;
                let rate = match rate {
                    Some(PyValue::Nothing) => return self.with_rate(samples, samples, ArrayKind::Numpy),
                    None => 22_050,
                    Some(rate) => self.hertz(&rate)?,
                };
                self.assume(format!("audio files have {rate} Hz: the step refuses others, which librosa converts"));
                let file = SoundRate::OfFile(self.graph.below_views(samples));
                let samples = self.resampled(samples, file, rate, "none")?;
                let rate = PyValue::Int(i64::try_from(rate).unwrap_or(i64::MAX));
                Ok(PyValue::Tuple(vec![PyValue::Array(samples, ArrayKind::Numpy), rate]))
            }
            "torchaudio.load" => {
                let [file] = arguments.bind(["uri"])?;
                let samples = self.sound(&needed(file, "uri")?, Datatype::Fp32)?;
                let shape = std::iter::once(Dim::Known(1)).chain(self.graph.shape(samples)).collect();
                let channels = self.graph.view(samples, shape)?;
                self.with_rate(samples, channels, ArrayKind::Torch)
            }
            "torchaudio.functional.resample" => {
                let [samples, from, to] = arguments.bind(["waveform", "orig_freq", "new_freq"])?;
                let from = self.rate(&needed(from, "orig_freq")?)?;
                let to = self.hertz(&needed(to, "new_freq")?)?;
                let id = self.as_array(&needed(samples, "waveform")?)?;
                Ok(PyValue::Array(self.resampled(id, from, to, "torchaudio_functional")?, ArrayKind::Torch))
            }
            "scipy.signal.resample_poly" => {
                let [samples, up, down] = arguments.bind(["x", "up", "down"])?;
                let (up, down) = (self.hertz(&needed(up, "up")?)?, self.rate(&needed(down, "down")?)?);
                let id = self.as_array(&needed(samples, "x")?)?;
                if self.graph.kind(id) != Kind::Number(Datatype::Fp32) {
                    return Err("samples that are not FP32".to_owned());
                }
                Ok(PyValue::Array(self.resampled(id, down, up, "scipy")?, ArrayKind::Numpy))
            }
            "torchaudio.compliance.kaldi.fbank" => self.kaldi_fbank(arguments),
            "transformers.WhisperFeatureExtractor.from_pretrained" => {
                let [folder] = arguments.bind(["pretrained_model_name_or_path"])?;
                let file = self.file_in(&needed(folder, "path")?, "preprocessor_config.json")?;
                Ok(PyValue::object(Object::FeatureExtractor(file)))
            }
            _ => Err("it is not known".to_owned()),
        }
    }

    /// The samples in a file of a tensor, as one channel.
    fn sound(&mut self, file: &PyValue, datatype: Datatype) -> Result<ExprId, String> {
        let id = match file {
            PyValue::Array(id, _) if self.graph.kind(*id) == Kind::Raw => *id,
            _ => return Err("the file of a sound is not known".to_owned()),
        };
        self.assume("audio files have one channel: of others the step takes the mean");
        let length = self.graph.open_size(false);
        self.by_row(Op::Sound(SoundOp::Decode), id, 0, Kind::Number(datatype), &[length])
    }

    /// A sound and its rate.
    fn with_rate(&mut self, samples: ExprId, shown: ExprId, kind: ArrayKind) -> Called {
        let shape = self.graph.shape(samples);
        let lead = shape.get(..shape.len().saturating_sub(1)).unwrap_or_default().to_vec();
        let rate = self.graph.add(Op::Sound(SoundOp::Rate), vec![samples], Kind::Number(Datatype::Int64), lead)?;
        Ok(PyValue::Tuple(vec![PyValue::Array(shown, kind), PyValue::Array(rate, ArrayKind::Python)]))
    }

    fn hertz(&self, value: &PyValue) -> Result<u64, String> {
        let rate = value.integer().and_then(|rate| u64::try_from(rate).ok()).filter(|rate| *rate > 0);
        rate.ok_or_else(|| "a sample rate is not known".to_owned())
    }

    fn rate(&self, value: &PyValue) -> Result<SoundRate, String> {
        match value {
            PyValue::Array(id, _) if *self.graph.op(*id) == Op::Sound(SoundOp::Rate) => {
                let sound = self.graph.operand(*id).unwrap_or(*id);
                Ok(SoundRate::OfFile(self.graph.below_views(sound)))
            }
            other => self.hertz(other).map(SoundRate::Known),
        }
    }

    fn resampled(&mut self, id: ExprId, from: SoundRate, to: u64, method: &'static str) -> Result<ExprId, String> {
        let from = match from {
            SoundRate::Known(rate) => Some(rate),
            SoundRate::OfFile(file) if self.graph.below_views(id) == file => None,
            SoundRate::OfFile(_) => {
                return Err("the sample rate is that of another sound, or the sound was changed".to_owned());
            }
        };
        let length = self.graph.open_size(false);
        self.by_row(Op::Sound(SoundOp::Resample { from, to, method }), id, 1, Kind::Number(Datatype::Fp32), &[length])
    }

    /// The extractor of Whisper.
    pub fn call_feature_extractor(&mut self, file: &str, arguments: &Arguments) -> Called {
        let [samples, rate, tensors] = arguments.bind(["raw_speech", "sampling_rate", "return_tensors"])?;
        let kind = match tensors {
            Some(PyValue::Text(form)) if form == "np" => ArrayKind::Numpy,
            Some(PyValue::Text(form)) if form == "pt" => ArrayKind::Torch,
            _ => return Err("its return_tensors is not known".to_owned()),
        };
        if rate.is_some() {
            self.assume(
                "sounds have the sample rate of preprocessor_config.json, which model.py checks and the step does not",
            );
        }
        let samples = needed(samples, "raw_speech")?;
        let is_list = matches!(samples, PyValue::List(_) | PyValue::Tuple(_));
        let id = self.as_array(&samples)?;
        if self.graph.rank(id) != if is_list { 2 } else { 1 } {
            return Err("its samples are not those of one channel".to_owned());
        }
        let [bins, frames] = [0; 2].map(|_| self.graph.open_size(false));
        let op = Op::Sound(SoundOp::LogMel(file.to_owned()));
        let mut made = self.by_row(op, id, 1, Kind::Number(Datatype::Fp32), &[bins, frames])?;
        if !is_list {
            let shape = std::iter::once(Dim::Known(1)).chain(self.graph.shape(made)).collect();
            made = self.graph.view(made, shape)?;
        }
        Ok(PyValue::object(Object::Encoding([("input_features".to_owned(), (made, kind))].into())))
    }
}
