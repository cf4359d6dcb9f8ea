//! The control thread, and all that it starts and asks: loads, engines, model repositories, threads, watches. A folder
//! imports only those below it:
//!
//! ```text
//! thread                  the control thread: orders, records of models, hand-over, the end
//! serving                 from a loaded version to threads that serve it
//! loading                 from a model's directory to a loaded version
//! engines                 engines, frameworks, Python, processes of isolated models
//! repository   outside    models and their files; files of access control, supervisor, Redis, traces
//! machine                 cores, memory, threads, and their watches
//! ```

pub mod check;
pub mod doctor;
pub mod engines;
pub mod loading;
pub mod machine;
pub mod outside;
pub mod repository;
pub mod serving;
pub mod suggest;
pub mod thread;
