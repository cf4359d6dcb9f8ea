//! Batch inputs (`batch_input`): inputs of a model that the server makes from the shapes of a batch's
//! requests, so that the model can find the requests in the elements of a ragged input. Each instance has
//! one set, and reuses its buffers. Bounded by the rows of a batch times the rank of a shape, and, for
//! `BATCH_MAX_ELEMENT_COUNT_AS_SHAPE`, by the elements of the largest request.
//!
//! The values are those of Triton's backends (`backend_input_collector.cc`): a count is for a whole
//! request with all its rows, a shape is for each row and without the batch axis.

use std::sync::Arc;

use crate::Request;
use base::error::Error;
use base::tensor::{AlignedBuffer, Datatype, Shape, element_count};
use model::{BatchInput, BatchInputKind, ModelSpec};

/// The batch inputs of a model, for the batch last given to [`Self::make`].
pub struct BatchInputs {
    spec: Arc<ModelSpec>,
    made: Vec<MadeInputs>,
}

#[derive(Default)]
struct MadeInputs {
    shape: Shape,
    buffer: AlignedBuffer,
}

impl BatchInputs {
    /// The batch inputs of a model; most models have none.
    #[inline]
    pub fn new(spec: Arc<ModelSpec>) -> Self {
        let made = spec.batch_inputs.iter().map(|_| MadeInputs::default()).collect();
        Self { spec, made }
    }

    /// Makes them for a batch of these requests.
    ///
    /// # Errors
    ///
    /// Invalid if a value does not fit into INT32 or an input does not fit into memory.
    pub fn make(&mut self, requests: &[Request]) -> Result<(), Error> {
        for (input, made) in self.spec.batch_inputs.iter().zip(&mut self.made) {
            let fault = |reason: String| {
                Error::invalid(format!("batch input '{}' of model '{}' {reason}", input.name, self.spec.name))
            };
            made.make(input, requests).map_err(fault)?;
        }
        Ok(())
    }

    /// The shape of one, by its index in the configuration's batch inputs.
    #[inline]
    pub fn shape(&self, index: usize) -> &[i64] {
        self.made.get(index).map_or(&[], |made| &made.shape)
    }

    /// The bytes of one, INT32 or FP32.
    #[inline]
    pub fn contents(&self, index: usize) -> &[u8] {
        self.made.get(index).map_or(&[], |made| made.buffer.as_slice())
    }
}

impl MadeInputs {
    fn make(&mut self, input: &BatchInput, requests: &[Request]) -> Result<(), String> {
        self.buffer.resize(0);
        self.shape = Shape::from_slice(&[0]);
        let shapes = requests.iter().map(|request| request.inputs.get(input.source).map_or(&[][..], |t| &t.shape));
        match input.kind {
            BatchInputKind::ElementCount => self.push_counts(input, shapes.map(count)),
            BatchInputKind::AccumulatedElementCount => self.push_counts(input, accumulated(shapes.map(count))),
            BatchInputKind::AccumulatedElementCountWithZero => {
                self.push_counts(input, std::iter::once(0).chain(accumulated(shapes.map(count))))
            }
            BatchInputKind::MaxElementCountAsShape => {
                let most = shapes.map(count).max().unwrap_or(0);
                self.shape = Shape::from_slice(&[most]);
                let size = usize::try_from(most).ok().and_then(|most| most.checked_mul(4));
                // The model uses only the shape. Triton leaves the values uninitialised; here they are zero.
                self.buffer.resize(size.ok_or("has more elements than memory has bytes")?);
                Ok(())
            }
            BatchInputKind::ItemShape | BatchInputKind::ItemShapeFlatten => self.push_shapes(input, shapes),
        }
    }

    fn push_counts(&mut self, input: &BatchInput, counts: impl Iterator<Item = i64>) -> Result<(), String> {
        let mut length = 0;
        for count in counts {
            push(input.datatype, count, &mut self.buffer)?;
            length += 1;
        }
        self.shape = Shape::from_slice(&[length]);
        Ok(())
    }

    fn push_shapes<'a>(&mut self, input: &BatchInput, shapes: impl Iterator<Item = &'a [i64]>) -> Result<(), String> {
        let (mut rows_sum, mut rank) = (0_i64, 0);
        for shape in shapes {
            let Some((rows, row)) = shape.split_first() else { continue };
            for _ in 0..*rows {
                for size in row {
                    push(input.datatype, *size, &mut self.buffer)?;
                }
            }
            rows_sum = rows_sum.saturating_add(*rows);
            rank = i64::try_from(row.len()).unwrap_or(i64::MAX);
        }
        self.shape = match input.kind {
            BatchInputKind::ItemShape => Shape::from_slice(&[rows_sum, rank]),
            _ => Shape::from_slice(&[rows_sum.saturating_mul(rank)]),
        };
        Ok(())
    }
}

/// Elements of a checked shape. The count cannot overflow: the bytes are in memory.
fn count(shape: &[i64]) -> i64 {
    element_count(shape).map_or(0, |count| i64::try_from(count).unwrap_or(i64::MAX))
}

fn accumulated(counts: impl Iterator<Item = i64>) -> impl Iterator<Item = i64> {
    counts.scan(0_i64, |sum, count| {
        *sum = sum.saturating_add(count);
        Some(*sum)
    })
}

fn push(datatype: Datatype, value: i64, out: &mut AlignedBuffer) -> Result<(), String> {
    if datatype == Datatype::Fp32 {
        #[expect(clippy::cast_precision_loss, reason = "FP32 counts are what the configuration asks for")]
        out.extend_from_slice(&(value as f32).to_ne_bytes());
        return Ok(());
    }
    let value =
        i32::try_from(value).map_err(|_| format!("would have to be {value}, which is out of the range of INT32"))?;
    out.extend_from_slice(&value.to_ne_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{TrialAnswers, spec, tensor};
    use base::tensor::Tensor;

    /// Takes shapes of the requests, separated by spaces, and returns the input that a kind makes
    /// of them: shape and values.
    fn made(kind: BatchInputKind, datatype: Datatype, shapes: &str) -> String {
        let mut model = spec(8, &[("x", Datatype::Uint8, &[-1, -1])], &[]);
        model.batch_inputs = vec![BatchInput { name: "b".to_owned(), datatype, kind, source: 0 }];
        let mut inputs = BatchInputs::new(Arc::new(model));
        // An earlier batch leaves nothing behind.
        for shapes in ["1,1,1 1,9,9 3,3,3", shapes] {
            let requests = shapes.split_whitespace().map(|shape| {
                let shape: Shape = shape.split(',').map(|size| size.parse().unwrap()).collect();
                let elements = vec![0_u8; element_count(&shape).unwrap()];
                (vec![Tensor { shape: shape.clone(), ..tensor(&[1], &elements) }], shape[0] as u32)
            });
            let answers = TrialAnswers::default();
            inputs.make(&answers.batch(requests.collect()).requests).unwrap();
        }
        let values: Vec<f64> = match datatype {
            Datatype::Fp32 => {
                bytemuck::cast_slice::<u8, f32>(inputs.contents(0)).iter().map(|v| f64::from(*v)).collect()
            }
            _ => bytemuck::cast_slice::<u8, i32>(inputs.contents(0)).iter().map(|v| f64::from(*v)).collect(),
        };
        format!("{:?} {values:?}", inputs.shape(0)).replace(".0", "")
    }

    #[test]
    fn every_kind_tells_of_the_batch_what_triton_tells() {
        use BatchInputKind::*;
        // The second request brings two rows; the last example is the one of `model_config.proto`.
        let check = |kind, shapes: &str, want: &str| {
            for datatype in [Datatype::Int32, Datatype::Fp32] {
                assert_eq!(made(kind, datatype, shapes), want, "{kind:?} {datatype:?} {shapes}");
            }
        };
        let three = "1,4,1 2,3,2 1,0,5";
        check(ElementCount, three, "[3] [4, 12, 0]");
        check(AccumulatedElementCount, three, "[3] [4, 16, 16]");
        check(AccumulatedElementCountWithZero, three, "[4] [0, 4, 16, 16]");
        check(MaxElementCountAsShape, three, "[12] [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]");
        check(ItemShape, three, "[4, 2] [4, 1, 3, 2, 3, 2, 0, 5]");
        check(ItemShapeFlatten, three, "[8] [4, 1, 3, 2, 3, 2, 0, 5]");
        check(ItemShape, "2,3,1 1,2,2", "[3, 2] [3, 1, 3, 1, 2, 2]");
        check(ItemShapeFlatten, "2,3,1 1,2,2", "[6] [3, 1, 3, 1, 2, 2]");
        check(ElementCount, "1,1,1", "[1] [1]");
        check(AccumulatedElementCountWithZero, "1,1,1", "[2] [0, 1]");
        check(MaxElementCountAsShape, "1,0,0", "[0] []");
    }

    #[test]
    fn a_count_that_int32_cannot_hold_is_refused_by_name() {
        let mut buffer = AlignedBuffer::default();
        let refused = push(Datatype::Int32, 1 << 31, &mut buffer);
        assert_eq!(refused, Err("would have to be 2147483648, which is out of the range of INT32".to_owned()));
        assert_eq!(push(Datatype::Fp32, 1 << 31, &mut buffer), Ok(()));
        assert_eq!(buffer.as_slice(), 2_147_483_648_f32.to_ne_bytes());
    }
}
