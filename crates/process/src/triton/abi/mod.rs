//! The functions that a backend calls: those of `tritonbackend.h` and `tritonserver.h`, in files by their object. Each
//! checks its arguments, and a panic in it is an error of the call, never an unwinding into C. Signatures are those of
//! TRITONBACKEND 1.19 and TRITONSERVER 1.34.

mod backend;
mod buffer_attributes;
mod cache;
mod datatype;
mod error;
mod inference_request;
mod inference_response;
mod input;
mod instance;
mod log;
mod memory_manager;
mod message;
mod metric;
mod model;
mod parameter;
mod repository_agent;
mod request;
mod response;
mod server;
mod state;
mod statistics;
mod trace;
mod unsupported;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::triton::elf::AbsoluteSymbol;
use crate::triton::error::{ErrorHandle, ErrorObject};
use crate::triton::object::Handle;
use base::error::Error;

/// The version of `tritonbackend.h` that this host has.
pub(super) const BACKEND_API: (u32, u32) = (1, 19);
/// The version of `tritonserver.h`.
pub(super) const SERVER_API: (u32, u32) = (1, 34);

/// A function that backends find by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExportedFunction {
    pub(super) name: &'static str,
    pub(super) address: usize,
}

/// The functions as the symbols of a library.
pub(super) fn symbols() -> Vec<AbsoluteSymbol> {
    let symbol = |function: ExportedFunction| AbsoluteSymbol { name: function.name, address: function.address as u64 };
    exports().into_iter().map(symbol).collect()
}

/// All functions, those that are only refused included, sorted by name.
pub(super) fn exports() -> Vec<ExportedFunction> {
    let mut all: Vec<ExportedFunction> = implemented().chain(unsupported::exports()).collect();
    all.sort_unstable_by_key(|function| function.name);
    all
}

/// The functions that do something.
pub(super) fn implemented() -> impl Iterator<Item = ExportedFunction> {
    [
        backend::exports(),
        buffer_attributes::exports(),
        cache::exports(),
        datatype::exports(),
        error::exports(),
        inference_request::exports(),
        inference_response::exports(),
        input::exports(),
        instance::exports(),
        log::exports(),
        memory_manager::exports(),
        message::exports(),
        metric::exports(),
        model::exports(),
        parameter::exports(),
        repository_agent::exports(),
        request::exports(),
        response::exports(),
        server::exports(),
        state::exports(),
        statistics::exports(),
        trace::exports(),
    ]
    .into_iter()
    .flatten()
}

/// Defines functions that return an error or null, and lists them.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[allow(non_snake_case, reason = "the name is C's")]
            extern "C" fn $name($($argument: $type),*) -> $crate::triton::error::ErrorHandle {
                $crate::triton::abi::answer(stringify!($name), move || $body)
            }
        )*

        pub(super) fn exports() -> Vec<$crate::triton::abi::ExportedFunction> {
            vec![$($crate::triton::abi::ExportedFunction {
                name: stringify!($name),
                address: $name as *const () as usize,
            }),*]
        }
    };
}
use functions;

/// Defines functions that return a value, with the value to return after a panic, and lists them.
macro_rules! values {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) -> $value:ty, or $default:expr => $body:block)*) => {
        $(
            #[allow(non_snake_case, reason = "the name is C's")]
            extern "C" fn $name($($argument: $type),*) -> $value {
                $crate::triton::abi::guarded(move || $body).unwrap_or($default)
            }
        )*

        fn values() -> Vec<$crate::triton::abi::ExportedFunction> {
            vec![$($crate::triton::abi::ExportedFunction {
                name: stringify!($name),
                address: $name as *const () as usize,
            }),*]
        }
    };
}
use values;

/// The answer of a function.
fn answer(name: &'static str, body: impl FnOnce() -> Result<(), Error>) -> ErrorHandle {
    match guarded(body) {
        Some(Ok(())) => Handle::null(),
        Some(Err(error)) => ErrorObject::raise(&error),
        None => ErrorObject::raise(&Error::internal(format!("{name} failed inside the server; this is a fault of it"))),
    }
}

/// The result of a body; `None` if it panics, which the hook has logged.
fn guarded<T>(body: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(body)).ok()
}
