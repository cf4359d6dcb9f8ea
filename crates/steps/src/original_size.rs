//! `original_size`: the sizes of the images that a tensor was made of, which steps behind a model go back to.

use base::error::Error;
use base::tensor::Tensor;

use crate::tensors::{integers, trailing};

/// Height and width of each image.
///
/// # Errors
/// If the tensor has another count of rows, or a size is not above 0: the text names the port.
pub fn original_sizes(tensor: &Tensor, rows: usize) -> Result<Vec<[usize; 2]>, Error> {
    let port = "original_size";
    let (have, [numbers]) = trailing::<1>(port, "[2]", tensor)?;
    let sizes = integers(port, tensor)?;
    if (have, numbers) != (rows, 2) {
        let shape = &tensor.shape[..];
        return Err(Error::invalid(format!(
            "'{port}' must have 2 numbers for each of {rows} images, but its shape is {shape:?}"
        )));
    }
    if let Some(size) = sizes.iter().find(|size| !(1..=SIDE_MAX).contains(*size)) {
        return Err(Error::invalid(format!("'{port}' must have sizes from 1 to {SIDE_MAX}, but one is {size}")));
    }
    let pairs = sizes.as_chunks::<2>().0.iter();
    Ok(pairs.map(|size| size.map(|side| usize::try_from(side).unwrap_or(0))).collect())
}

/// The largest side of an image: FP32 holds it exactly.
const SIDE_MAX: i64 = 1 << 24;
