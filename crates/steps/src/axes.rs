//! Tensors along an axis, their elements as bytes: what `stack`, `concat`, `select` and `shape` share.

use base::error::Error;
use base::tensor::{Shape, Tensor, element_count};
use smallvec::SmallVec;

use crate::fields::{Field, FieldDefault, FieldKind};
use crate::limits::{RANK_MAX, TENSOR_SIZE_MAX};
use crate::tensors::{check_size, wrong_datatype};

/// The parameter that names an axis.
pub const fn axis_field(default: &'static str, about: &'static str) -> Field {
    Field {
        name: "axis",
        kind: FieldKind::Integer(-(RANK_MAX as i64), RANK_MAX as i64),
        default: FieldDefault::Json(default),
        about,
    }
}

/// The place of an axis among `rank` dimensions; a negative one counts from the end.
///
/// # Errors
/// If there is no such axis: the text names the parameter and the port.
pub fn place(parameter: &str, port: &str, axis: i64, rank: usize) -> Result<usize, Error> {
    let signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let place = if axis < 0 { axis.saturating_add(signed) } else { axis };
    usize::try_from(place).ok().filter(|place| *place < rank).ok_or_else(|| {
        Error::invalid(format!("'{port}' has no axis {axis}, which \"{parameter}\" names: it has {rank} dimensions"))
    })
}

/// The bytes of an element.
///
/// # Errors
/// For strings, for contents of another size than the shape's, and for too many dimensions: the text names the port.
pub fn element_size(port: &str, tensor: &Tensor) -> Result<usize, Error> {
    let size = tensor.datatype.size().ok_or_else(|| wrong_datatype(port, "numbers", tensor))?;
    check_size(port, tensor)?;
    if tensor.shape.len() > RANK_MAX {
        let rank = tensor.shape.len();
        return Err(Error::invalid(format!("'{port}' has {rank} dimensions, but at most {RANK_MAX} are supported")));
    }
    Ok(size)
}

/// Bytes from one element to the next along an axis: the size of all dimensions behind it.
pub fn stride(shape: &[i64], axis: usize, element_size: usize) -> usize {
    let behind = shape.get(axis.saturating_add(1)..).unwrap_or_default();
    element_count(behind).unwrap_or(0).saturating_mul(element_size)
}

/// Joins tensors of one datatype along an axis that all have; other dimensions are equal.
///
/// # Errors
/// If they do not fit each other: the text names the port.
pub fn join(port: &str, tensors: &[Tensor], axis: usize) -> Result<Tensor, Error> {
    let Some(first) = tensors.first() else { return Err(Error::invalid(format!("'{port}' must have a tensor"))) };
    let element = element_size(port, first)?;
    let mut length = 0_i64;
    for (index, tensor) in tensors.iter().enumerate() {
        let place = format!("{port}[{index}]");
        element_size(&place, tensor)?;
        if tensor.datatype != first.datatype {
            return Err(wrong_datatype(&place, &format!("{}, as {port}[0] does", first.datatype.name()), tensor));
        }
        let others =
            |shape: &Shape| shape.iter().copied().enumerate().filter(|(place, _)| *place != axis).collect::<Vec<_>>();
        if others(&tensor.shape) != others(&first.shape) {
            let (shape, expected) = (&tensor.shape[..], &first.shape[..]);
            return Err(Error::invalid(format!(
                "'{place}' has the shape {shape:?}, which must be equal to {expected:?} but for axis {axis}"
            )));
        }
        length = length.saturating_add(tensor.shape.get(axis).copied().unwrap_or(0));
    }
    let size = |tensor: &Tensor| -> usize {
        let count = tensor.shape.get(axis).and_then(|count| usize::try_from(*count).ok()).unwrap_or(0);
        count.saturating_mul(stride(&tensor.shape, axis, element))
    };
    let mut contents = Vec::with_capacity(tensors.iter().map(|tensor| tensor.contents.len()).sum());
    let mut parts: Vec<_> = tensors.iter().map(|tensor| tensor.contents.chunks_exact(size(tensor).max(1))).collect();
    let rows = element_count(first.shape.get(..axis).unwrap_or_default()).unwrap_or(0);
    // With nothing to copy, a count of rows from a client is not a count of turns.
    for _ in 0..if contents.capacity() == 0 { 0 } else { rows } {
        for part in &mut parts {
            contents.extend_from_slice(part.next().unwrap_or_default());
        }
    }
    let mut shape = first.shape.clone();
    if let Some(place) = shape.get_mut(axis) {
        *place = length;
    }
    Ok(Tensor { datatype: first.datatype, shape, contents: contents.into() })
}

/// Copies the elements of these places along an axis.
///
/// # Errors
/// If the result would be larger than [`TENSOR_SIZE_MAX`]: the text names the port.
pub fn gather(port: &str, tensor: &Tensor, axis: usize, places: &[usize]) -> Result<Tensor, Error> {
    let element_size = element_size(port, tensor)?;
    let stride = stride(&tensor.shape, axis, element_size);
    let length = tensor.shape.get(axis).and_then(|length| usize::try_from(*length).ok()).unwrap_or(0);
    let row = stride.saturating_mul(length);
    let rows = tensor.contents.len().checked_div(row).unwrap_or(0);
    let size = rows.saturating_mul(stride).saturating_mul(places.len());
    if size > TENSOR_SIZE_MAX {
        return Err(Error::invalid(format!("'{port}' would become larger than {TENSOR_SIZE_MAX} bytes")));
    }
    let mut contents = Vec::with_capacity(size);
    for row in tensor.contents.chunks_exact(row.max(1)) {
        for place in places {
            let start = place.saturating_mul(stride);
            contents.extend_from_slice(row.get(start..start.saturating_add(stride)).unwrap_or_default());
        }
    }
    let mut shape = tensor.shape.clone();
    if let Some(place) = shape.get_mut(axis) {
        *place = i64::try_from(places.len()).unwrap_or(i64::MAX);
    }
    Ok(Tensor { datatype: tensor.datatype, shape, contents: contents.into() })
}

/// Orders the dimensions anew: dimension `i` of the result is dimension `order[i]` of the tensor.
pub fn transposed(tensor: &Tensor, order: &[usize], element_size: usize) -> Tensor {
    let shape: Shape = order.iter().map(|axis| tensor.shape.get(*axis).copied().unwrap_or(0)).collect();
    let contents = match element_size {
        1 => reordered::<1>(tensor, order, &shape),
        2 => reordered::<2>(tensor, order, &shape),
        4 => reordered::<4>(tensor, order, &shape),
        _ => reordered::<8>(tensor, order, &shape),
    };
    Tensor { datatype: tensor.datatype, shape, contents: contents.into() }
}

fn reordered<const N: usize>(tensor: &Tensor, order: &[usize], shape: &[i64]) -> Vec<u8> {
    let (elements, _) = tensor.contents.as_chunks::<N>();
    let mut contents = Vec::with_capacity(tensor.contents.len());
    // For each dimension of the result: its size, its stride in the tensor, and the place.
    let mut counters: SmallVec<[[usize; 3]; RANK_MAX]> = order
        .iter()
        .zip(shape)
        .map(|(axis, size)| [usize::try_from(*size).unwrap_or(0), stride(&tensor.shape, *axis, 1), 0])
        .collect();
    let last = counters.pop().unwrap_or([1, 1, 0]);
    let mut start = 0_usize;
    while contents.len() < tensor.contents.len() {
        let [size, stride, _] = last;
        let line = elements.get(start..).unwrap_or_default().iter().step_by(stride.max(1)).take(size);
        contents.extend(line.flatten());
        for [size, stride, place] in counters.iter_mut().rev() {
            *place += 1;
            start = start.saturating_add(*stride);
            if place < size {
                break;
            }
            start = start.saturating_sub(stride.saturating_mul(*size));
            *place = 0;
        }
    }
    contents
}
