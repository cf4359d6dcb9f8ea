//! The steps `audio`, `resample`, `fbank` and `log_mel`: files to samples, to another sample rate, and to features.

use base::tensor::Datatype;

use crate::suggest::library::quoted;
use crate::suggest::lower::numbers::number_of;
use crate::suggest::lower::{MadeTensor, StepLowering};
use crate::suggest::op::{ArithmeticOp, Dim, ExprId, Kind, Op, PictureOp, SoundOp};

impl StepLowering<'_, '_> {
    /// The step of a sound.
    pub fn sound(&mut self, id: ExprId) -> Result<MadeTensor, String> {
        let graph = &self.machine.graph;
        let (Op::Sound(op), Some(below)) = (graph.op(id).clone(), graph.operand(id)) else {
            return Err("a sound is not known".to_owned());
        };
        let shape = graph.shape(id);
        match op {
            SoundOp::Decode => self.decoded_sound(id, below, "samples", Vec::new(), Datatype::Fp32),
            SoundOp::Rate => {
                let Some(file) = graph.operand(graph.below_views(below)) else {
                    return Err("a sound is not known".to_owned());
                };
                self.decoded_sound(id, file, "sample_rate", Vec::new(), Datatype::Int64)
            }
            SoundOp::Resample { from: None, to, method } => {
                let sound = graph.below_views(below);
                let (Op::Sound(SoundOp::Decode), Some(file)) = (graph.op(sound), graph.operand(sound)) else {
                    return Err("the sample rate is that of a file, and the sound was changed".to_owned());
                };
                let fields = vec![("sample_rate", to.to_string()), ("resample", quoted(method))];
                let made = self.decoded_sound(id, file, "samples", fields, Datatype::Fp32)?;
                self.add_lines(&made.0, sound);
                Ok(made)
            }
            SoundOp::Resample { from: Some(from), to, method } => {
                let input = self.lower(below)?;
                let fields = vec![("from", from.to_string()), ("to", to.to_string()), ("method", quoted(method))];
                Ok((self.step("resample", vec![("samples", vec![input])], "samples", fields, id)?, shape))
            }
            SoundOp::Fbank(fields) => {
                let (below, scale) = self.unscaled(below);
                self.single(below);
                let (input, made) = self.raw(below)?;
                let lead = made.get(..made.len().saturating_sub(1)).unwrap_or_default();
                let own = shape.get(shape.len().saturating_sub(2)..).unwrap_or_default();
                let made = [lead, own].concat();
                let mut fields = fields.to_vec();
                if scale != 1.0 {
                    fields.push(("scale", number_of(scale)));
                }
                Ok((self.step("fbank", vec![("samples", vec![input])], "features", fields, id)?, made))
            }
            SoundOp::LogMel(file) => {
                self.single(below);
                let (input, made) = self.raw(below)?;
                let lead = made.get(..made.len().saturating_sub(1)).unwrap_or_default();
                let own = shape.get(shape.len().saturating_sub(2)..).unwrap_or_default();
                let made = [lead, own].concat();
                let fields = vec![("config", quoted(&file))];
                Ok((self.step("log_mel", vec![("samples", vec![input])], "features", fields, id)?, made))
            }
        }
    }

    /// Samples before they are multiplied by a power of two, which changes no digit, and the factor.
    fn unscaled(&self, mut id: ExprId) -> (ExprId, f64) {
        let graph = &self.machine.graph;
        let mut scale = 1.0;
        loop {
            let (below, factor) = match (graph.op(id), graph.get(id).inputs.as_slice()) {
                (Op::Binary(ArithmeticOp::Multiply), [left, right]) => {
                    match (graph.number(*left), graph.number(*right)) {
                        (None, Some(factor)) => (*left, factor),
                        (Some(factor), None) => (*right, factor),
                        _ => return (id, scale),
                    }
                }
                (Op::View, [below]) if graph.shape(*below).last() == graph.shape(id).last() => (*below, 1.0),
                _ => return (id, scale),
            };
            if factor <= 0.0 || factor.log2().fract() != 0.0 {
                return (id, scale);
            }
            (id, scale) = (below, scale * factor);
        }
    }

    /// A step that decodes files: [rows] or [rows, samples].
    fn decoded_sound(
        &mut self,
        id: ExprId,
        file: ExprId,
        port: &'static str,
        mut fields: Vec<(&'static str, String)>,
        datatype: Datatype,
    ) -> Result<MadeTensor, String> {
        let graph = &self.machine.graph;
        let mut source = graph.below_views(file);
        let mut encoding = "raw";
        if let (Op::Picture(PictureOp::Base64), Some(text)) = (graph.op(source), graph.operand(source)) {
            (encoding, source) = ("base64", graph.below_views(text));
        }
        while let (Op::Encode | Op::Decode | Op::View, Some(below)) = (graph.op(source), graph.operand(source)) {
            source = below;
        }
        if !matches!(graph.kind(source), Kind::Raw | Kind::Text) {
            return Err("the file of a sound is in no string".to_owned());
        }
        fields.insert(0, ("encoding", quoted(encoding)));
        let shape = graph.shape(id);
        let count = usize::from(port == "samples");
        let lead = shape.get(..shape.len().saturating_sub(count)).unwrap_or_default();
        let mut several = lead.iter().copied().filter(|dim| *dim != Dim::Known(1));
        let rows = several.next().unwrap_or(Dim::Known(1));
        if several.next().is_some() {
            return Err("sounds in several axes".to_owned());
        }
        let own = shape.last().copied().filter(|_| count > 0);
        let made = std::iter::once(rows).chain(own).collect();
        let (input, _) = self.raw(source)?;
        let name = self.step("audio", vec![("audio", vec![input])], port, fields, id)?;
        Ok((self.typed(name, datatype, id)?, made))
    }
}
