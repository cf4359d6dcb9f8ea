//! Models beside the server: the processes of Python models, of isolated engines and of Triton's backends, and the host
//! of those backends, which also serves them inside the server.

mod execution;
pub mod isolation;
mod limits;
pub mod private_directory;
pub mod python;
pub mod triton;
pub mod triton_process;
