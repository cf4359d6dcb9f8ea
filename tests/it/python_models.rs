//! Python models on the server as a process: `model.py` files as they are in Triton repositories, those of
//! `tests/python_models` and some that are only for a test.

mod acceptance;
mod beyond;
mod calls;
mod clients;
mod cores;
mod declared;
mod environments;
mod faults;
mod life;
mod memory;
mod placed;
mod readiness;
mod traced;
pub mod zoo;
