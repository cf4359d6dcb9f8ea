//! Python models: `backend: "python"` and Python-based backends. Each instance is a process of the user's own
//! interpreter, which runs `model.py` unmodified. See `docs/architecture/python.md` for the parts and the protocol.

mod adoption;
pub mod allocator;
pub mod archive;
mod calls;
mod child;
mod context;
pub mod cores;
pub mod environment;
pub mod exit;
pub mod files;
mod flights;
mod fork;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod host;
mod inbox;
mod instance;
pub mod json;
mod library;
mod line;
mod link;
mod memory;
pub mod message;
mod model;
mod open_calls;
pub mod process;
mod program;
pub mod region;
mod reports;
pub mod restart;
mod roster;
mod sent_request;
mod spawn;
mod starter;
mod template;
mod unpack;
pub mod written;

pub use self::context::PythonOptions;
pub use self::library::{LibraryProcesses, LibraryVersion};
pub use self::memory::RegionLimit;
pub use self::model::{PythonBackend, PythonCompletion};
pub use self::program::{LibraryStart, ProcessCommand, ProcessProgram};
pub use self::roster::ModelProcess;

/// The program that the interpreter is started with (`-c`): it reads the others from the main socket.
const BOOT: &str = include_str!("worker/boot.py");
/// The modules of the process.
const MODULES: &[(&str, &str)] = &[
    ("c_python_backend_utils", include_str!("worker/c_python_backend_utils.py")),
    ("deuteron_archive", include_str!("worker/deuteron_archive.py")),
    ("deuteron_caffe2", include_str!("worker/deuteron_caffe2.py")),
    ("deuteron_call", include_str!("worker/deuteron_call.py")),
    ("deuteron_channel", include_str!("worker/deuteron_channel.py")),
    ("deuteron_config", include_str!("worker/deuteron_config.py")),
    ("deuteron_control", include_str!("worker/deuteron_control.py")),
    ("deuteron_cuda", include_str!("worker/deuteron_cuda.py")),
    ("deuteron_dlpack", include_str!("worker/deuteron_dlpack.py")),
    ("deuteron_framework", include_str!("worker/deuteron_framework.py")),
    ("deuteron_layout", include_str!("worker/deuteron_layout.py")),
    ("deuteron_loop", include_str!("worker/deuteron_loop.py")),
    ("deuteron_memory", include_str!("worker/deuteron_memory.py")),
    ("deuteron_metric", include_str!("worker/deuteron_metric.py")),
    ("deuteron_overlap", include_str!("worker/deuteron_overlap.py")),
    ("deuteron_placed", include_str!("worker/deuteron_placed.py")),
    ("deuteron_pytorch", include_str!("worker/deuteron_pytorch.py")),
    ("deuteron_request", include_str!("worker/deuteron_request.py")),
    ("deuteron_start", include_str!("worker/deuteron_start.py")),
    ("deuteron_template", include_str!("worker/deuteron_template.py")),
    ("deuteron_tensor", include_str!("worker/deuteron_tensor.py")),
    ("deuteron_threads", include_str!("worker/deuteron_threads.py")),
    ("deuteron_watch", include_str!("worker/deuteron_watch.py")),
    ("deuteron_worker", include_str!("worker/deuteron_worker.py")),
    ("triton_python_backend_utils", include_str!("worker/triton_python_backend_utils.py")),
];
