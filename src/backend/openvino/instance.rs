//! One instance: a request of the compiled model, which runs gathered inputs.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::batch::{InputConversion, fits};
use crate::backend::bits::bools_to_bits;
use crate::backend::blame;
use crate::backend::engine_run::{EngineInputs, EngineInstance, output_differs};
use crate::backend::run_watch::RunStopper;
use crate::backend::text::ShapeText;
use crate::error::Error;
use crate::model::ModelSpec;
use crate::tensor::{AlignedBuffer, Datatype, Shape, Tensor};

use super::SharedModel;
use super::bind::{InputPort, OutputPort};
use super::library::{OvCompiled, OvRequest};

/// One instance.
pub(super) struct OpenvinoInstance {
    shared: Arc<SharedModel>,
    request: OvRequest,
    /// For models whose batches are filled up: a buffer for each input.
    padded: Vec<AlignedBuffer>,
    /// Whether the next run may be long, and so must be one that can be cancelled; the first one compiles.
    may_be_long: bool,
    _compiled: Arc<OvCompiled>,
}

/// The outputs of a run, which the request has: the rows that are the batch's.
pub(super) struct RunRows {
    /// The rows of the batch, where the model ran more.
    kept: Option<i64>,
}

impl OpenvinoInstance {
    pub(super) fn new(shared: Arc<SharedModel>, compiled: Arc<OvCompiled>, request: OvRequest) -> Self {
        let padded = shared.inputs.iter().map(|_| AlignedBuffer::default()).collect();
        Self { shared, request, padded, may_be_long: true, _compiled: compiled }
    }

    /// Puts the inputs of a batch that is too small into the buffers, with zeros behind them.
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

    fn output(&self, place: usize, port: OutputPort, kept: Option<i64>) -> Result<Tensor, Error> {
        let spec = &self.shared.spec;
        let output = self.request.output(port.index).map_err(|why| failed(spec, &why))?;
        let expected = spec.outputs.get(place).ok_or_else(|| Error::internal("no such output"))?;
        let Some(datatype) = output.datatype.filter(|datatype| *datatype == expected.datatype) else {
            let came = output.datatype.map_or("a datatype that the protocol lacks", Datatype::name);
            return Err(output_differs(spec, place, came));
        };
        let mut shape = output.shape.clone();
        let mut contents = output.contents;
        if let (Some(kept), Some(first)) = (kept, shape.first_mut()) {
            let (all, rows) = (usize::try_from(*first).unwrap_or(0), usize::try_from(kept).unwrap_or(0));
            let size = contents.len().checked_div(all).and_then(|row| row.checked_mul(rows));
            contents = size.and_then(|size| contents.get(..size)).unwrap_or_default();
            *first = kept;
        }
        // A configuration cannot express a scalar: it declares a last dimension of 1.
        if expected.may_be_scalar() && shape.len() + 1 == expected.model_shape.len() {
            shape.push(1);
        }
        let mut copy = AlignedBuffer::with_capacity(contents.len());
        match datatype {
            Datatype::Bool => bools_to_bits(contents, &mut copy)?,
            _ => copy.extend_from_slice(contents),
        }
        Ok(Tensor { datatype, shape, contents: copy.freeze() })
    }
}

impl EngineInstance for OpenvinoInstance {
    type Outputs = RunRows;

    fn conversion(datatype: Datatype) -> InputConversion {
        match datatype {
            Datatype::Bool => InputConversion { alignment: 1, convert: Some(bools_to_bits) },
            _ => InputConversion { alignment: datatype.size().unwrap_or(1), convert: None },
        }
    }

    fn spec(&self) -> &Arc<ModelSpec> {
        &self.shared.spec
    }

    fn compute(&mut self, batch: EngineInputs<'_>) -> Result<RunRows, Error> {
        let rows = batch.shape(0).first().copied();
        let fill = self.shared.fixed_rows.zip(rows).filter(|(fixed, rows)| fixed != rows);
        if let Some((fixed, rows)) = fill {
            self.pad(rows, fixed, batch)?;
        }
        let Self { shared, request, padded, may_be_long, .. } = self;
        let shapes: Vec<Shape> = shared
            .inputs
            .iter()
            .enumerate()
            .map(|(place, port)| {
                let mut shape = Shape::from_slice(batch.model_shape(place, port.is_squeezed));
                if let (Some((fixed, _)), Some(first)) = (fill, shape.first_mut()) {
                    *first = fixed;
                }
                // The configuration may leave open what the model does not.
                if fits(&port.taken, &shape) { Ok(shape) } else { Err(wrong_shape(&shared.spec, place, port, &shape)) }
            })
            .collect::<Result<_, Error>>()?;
        let inputs = shared.inputs.iter().zip(&shapes).zip(padded.iter()).enumerate();
        let inputs = inputs.map(|(place, ((port, shape), padded))| {
            let contents = if fill.is_some() { padded.as_slice() } else { batch.contents(place) };
            (port.index, port.datatype, shape.as_slice(), contents)
        });
        request.run(inputs, *may_be_long).map_err(|why| failed(&shared.spec, &why))?;
        Ok(RunRows { kept: fill.map(|(_, rows)| rows) })
    }

    fn outputs(&self, run: RunRows, _: EngineInputs<'_>) -> impl Iterator<Item = Result<Tensor, Error>> {
        let outputs = self.shared.outputs.iter().enumerate();
        outputs.map(move |(place, port)| self.output(place, *port, run.kept))
    }

    fn handle_end(&mut self, outcome: Result<RunRows, Error>, took: Duration) -> Result<RunRows, Error> {
        self.may_be_long = took > SHORT_RUN_MAX;
        outcome
    }

    fn stopper(&self) -> Option<RunStopper> {
        let canceller = self.request.canceller();
        Some(Box::new(move || canceller.cancel()))
    }
}

/// A run that takes no longer is followed by one on the worker's own thread, which cannot be cancelled: waking a thread of
/// the library's would cost a small model more than its run.
const SHORT_RUN_MAX: Duration = Duration::from_millis(5);

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
