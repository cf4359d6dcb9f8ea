//! `image`: files or pixels to tensors of a model.

pub mod opencv;
pub mod pillow;
pub mod pixels;
mod vector;
