//! The server's links to the world beside requests and models: files of access control, the supervisor, Redis, collectors
//! of traces, shared memory of clients, the socket of `--admin-socket`. Those that wait have threads of their own.

pub mod access_files;
pub mod api_keys;
pub mod cache_library;
pub mod certificates;
pub mod local_claim;
pub mod notify;
pub mod redis;
pub mod shared_memory;
pub mod trace;
pub mod watched_files;
