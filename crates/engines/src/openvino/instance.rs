//! One instance: a request of the compiled model, which runs gathered inputs.

use std::sync::Arc;

use smallvec::SmallVec;

use backend::batch::{InputConversion, fits};
use backend::bits::bools_to_bits;
use backend::blame;
use backend::engine_run::{EngineInputs, EngineInstance};
use backend::run_watch::RunStopper;
use backend::text::{ShapeText, output_differs};
use base::error::Error;
use base::tensor::{AlignedBuffer, Datatype, Shape, Tensor, mapped};
use model::ModelSpec;

use super::SharedModel;
use super::bind::InputPort;
use super::library::{OvCompiled, OvOutput, OvRequest};

/// One instance.
pub(super) struct OpenvinoInstance {
    shared: Arc<SharedModel>,
    request: OvRequest,
    /// For models whose batches are padded: a buffer for each input.
    padded: Vec<AlignedBuffer>,
    threads: usize,
    /// A run failed, and left something in the compiled model.
    is_tainted: bool,
    compiled: Arc<OvCompiled>,
}

/// The outputs of a run, in the order of the configuration.
pub(super) struct RunOutputs {
    outputs: SmallVec<[OvOutput; 2]>,
    /// The rows of the batch, if the model ran more.
    kept: Option<i64>,
}

impl OpenvinoInstance {
    pub(super) fn new(shared: Arc<SharedModel>, threads: usize, compiled: Arc<OvCompiled>, request: OvRequest) -> Self {
        let padded = shared.inputs.iter().map(|_| AlignedBuffer::default()).collect();
        Self { shared, request, padded, threads, is_tainted: false, compiled }
    }

    /// Compiles the model again.
    fn renew(&mut self) -> Result<(), String> {
        let compiled = self.shared.compile(self.threads)?;
        self.request.renew(&compiled)?;
        drop(std::mem::replace(&mut self.compiled, compiled));
        self.is_tainted = false;
        Ok(())
    }

    /// Puts the inputs of a batch that is too small into the buffers, with zeros after them.
    fn pad(&mut self, rows: i64, fixed: i64, batch: EngineInputs<'_>) -> Result<(), Error> {
        let name = &self.shared.spec.name;
        if rows > fixed || !self.shared.options.pads {
            return Err(Error::invalid(format!(
                "model '{name}' takes batches of {fixed} rows and not of {rows}: its parameter SKIP_OV_DYNAMIC_BATCHSIZE \
                 keeps it so; ENABLE_BATCH_PADDING fills smaller ones up"
            )));
        }
        for (index, buffer) in self.padded.iter_mut().enumerate() {
            let contents = batch.contents(index);
            let (rows, fixed) = (usize::try_from(rows).unwrap_or(0), usize::try_from(fixed).unwrap_or(0));
            let size = contents.len().checked_div(rows).and_then(|row| row.checked_mul(fixed));
            let size = size.ok_or_else(|| Error::internal(format!("a batch of model '{name}' has no rows")))?;
            buffer.resize(0);
            buffer.extend_from_slice(contents);
            buffer.resize(size);
            buffer.as_mut_slice().get_mut(contents.len()..).unwrap_or_default().fill(0);
        }
        Ok(())
    }

    fn output(&self, place: usize, output: OvOutput, kept: Option<i64>) -> Result<Tensor, Error> {
        let spec = &self.shared.spec;
        let OvOutput { datatype, mut shape, mut contents } = output;
        let expected = spec.outputs.get(place).ok_or_else(|| Error::internal("no such output"))?;
        let Some(datatype) = datatype.filter(|datatype| *datatype == expected.datatype) else {
            let came = datatype.map_or("a datatype that the protocol lacks", Datatype::name);
            return Err(output_differs(spec, place, came));
        };
        if let (Some(kept), Some(first)) = (kept, shape.first_mut()) {
            let (all, rows) = (usize::try_from(*first).unwrap_or(0), usize::try_from(kept).unwrap_or(0));
            let size = contents.len().checked_div(all).and_then(|row| row.checked_mul(rows));
            contents.truncate(size.unwrap_or_default());
            *first = kept;
        }
        // A configuration cannot express a scalar: it declares a last dimension of 1.
        if expected.may_be_scalar() && shape.len() + 1 == expected.model_shape.len() {
            shape.push(1);
        }
        if datatype == Datatype::Bool {
            let mut bits = AlignedBuffer::with_capacity(contents.len());
            bools_to_bits(&contents, &mut bits)?;
            contents = bits.freeze();
        }
        Ok(Tensor { datatype, shape, contents })
    }
}

impl EngineInstance for OpenvinoInstance {
    type Outputs = RunOutputs;

    fn conversion(datatype: Datatype) -> InputConversion {
        match datatype {
            Datatype::Bool => InputConversion { alignment: 1, convert: Some(bools_to_bits) },
            _ => InputConversion { alignment: datatype.size().unwrap_or(1), convert: None },
        }
    }

    fn spec(&self) -> &Arc<ModelSpec> {
        &self.shared.spec
    }

    fn compute(&mut self, batch: EngineInputs<'_>) -> Result<RunOutputs, Error> {
        let inputs = self.shared.spec.inputs.iter().zip(&self.shared.limits).enumerate();
        for (place, (input, limit)) in inputs {
            if let Some(limit) = limit {
                limit.check(&self.shared.spec, &input.name, input.datatype, batch.contents(place))?;
            }
        }
        if self.is_tainted {
            self.renew().map_err(|why| failed(&self.shared.spec, &why))?;
        }
        let rows = batch.shape(0).first().copied();
        let fill = self.shared.fixed_rows.zip(rows).filter(|(fixed, rows)| fixed != rows);
        if let Some((fixed, rows)) = fill {
            self.pad(rows, fixed, batch)?;
        }
        let Self { shared, request, padded, is_tainted, .. } = self;
        let shapes: Vec<Shape> = shared
            .inputs
            .iter()
            .enumerate()
            .map(|(place, port)| {
                let mut shape = Shape::from_slice(batch.model_shape(place, port.is_squeezed));
                if let (Some((fixed, _)), Some(first)) = (fill, shape.first_mut()) {
                    *first = fixed;
                }
                // The configuration may leave dimensions open that the model fixes.
                if fits(&port.taken, &shape) { Ok(shape) } else { Err(wrong_shape(&shared.spec, place, port, &shape)) }
            })
            .collect::<Result<_, Error>>()?;
        let inputs = shared.inputs.iter().zip(&shapes).zip(padded.iter()).enumerate();
        let inputs = inputs.map(|(place, ((port, shape), padded))| {
            let contents = if fill.is_some() { mapped(padded.as_slice()) } else { batch.contents(place) };
            (port.index, port.datatype, shape.as_slice(), contents)
        });
        let outputs = request.run(inputs, shared.outputs.iter());
        *is_tainted = outputs.is_err() && shared.keeps_failures;
        let outputs = outputs.map_err(|why| failed(&shared.spec, &why))?;
        Ok(RunOutputs { outputs, kept: fill.map(|(_, rows)| rows) })
    }

    fn outputs(&self, run: RunOutputs, _: EngineInputs<'_>) -> impl Iterator<Item = Result<Tensor, Error>> {
        let RunOutputs { outputs, kept } = run;
        outputs.into_iter().enumerate().map(move |(place, output)| self.output(place, output, kept))
    }

    fn stopper(&self) -> Option<RunStopper> {
        let canceller = self.request.canceller();
        Some(Box::new(move || canceller.cancel()))
    }
}

#[cold]
fn wrong_shape(spec: &ModelSpec, place: usize, port: &InputPort, came: &[i64]) -> Error {
    let name = spec.inputs.get(place).map_or("", |input| &input.name);
    let (came, taken) = (ShapeText(came), ShapeText(&port.taken));
    Error::invalid(format!("input '{name}' of model '{}' has shape {came}, but its file takes {taken}", spec.name))
}

/// The error of a run. The library has no code for a client's mistake, but its text tells.
fn failed(spec: &ModelSpec, why: &str) -> Error {
    if let Some(why) = blame::openvino(why) {
        return Error::invalid(format!("model '{}': OpenVINO: {why}", spec.name));
    }
    Error::internal(format!("model '{}': OpenVINO: {why}", spec.name))
}
