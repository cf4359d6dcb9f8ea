//! Engines inside the server's process: each is a [`Backend`](backend::Backend) on a library of the machine, on one of
//! ours, or on a GPU. None sees another process, a queue or a socket.

mod c_library;
pub mod gpu;
mod limits;
mod model_file;
pub mod onnxruntime;
pub mod openvino;
pub mod pytorch;
pub mod rten;
pub mod tensorflow;
pub mod trees;

pub use self::onnxruntime::{Onnxruntime, OnnxruntimeOnGpus};
pub use self::openvino::Openvino;
pub use self::pytorch::Pytorch;
pub use self::rten::Rten;
pub use self::tensorflow::Tensorflow;
pub use self::trees::Fil;
