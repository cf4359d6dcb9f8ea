//! The integration tests, in one program: each module is a subject, most of them on the server as a process. `cargo
//! test
//! --test it queue::` runs those of one.
//!
//! Programs of their own: `timed`, whose windows are narrow; `onnxruntime_gpu`, since a process opens one library of
//! ONNX Runtime and `onnxruntime` opens another here; `tidy`, which reads the source and is built in a second.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test waits, on the real clock, and fails by panicking"
)]

#[path = "../support/mod.rs"]
mod support;

mod admin_socket;
mod ask;
mod batch_axis;
mod capacity;
mod catalogue;
mod check;
mod class_names;
mod client_mistakes;
mod clients;
mod compression;
mod config_corpus;
mod config_name;
mod configs;
mod configuration;
mod console;
mod control;
mod cors;
mod dashboards;
mod deadlines;
mod departure;
mod digits;
mod doctor;
mod ensembles;
mod frameworks;
mod front_ends;
mod generate;
mod gpu_server;
mod groups;
mod guide;
mod hand_over;
mod hardware;
mod hostile;
mod hostile_requests;
mod hpack;
mod http1_suite;
mod http2;
mod http2_clients;
mod http2_peer;
mod hub;
mod image_example;
mod init;
mod instances;
mod isolation;
mod keep_alive;
mod kernels;
mod keys;
mod kubernetes;
mod large_json;
mod links;
mod load_trials;
mod logging;
mod many_models;
mod memory_limit;
mod memory_slope;
mod metrics;
mod models;
mod namespacing;
mod ocr_example;
mod onnx_suite;
mod onnxruntime;
mod oracle;
mod perf_analyzer;
mod plain_json;
mod policy;
mod predict;
mod protocol_page;
mod python_faults;
mod python_models;
mod python_module;
mod python_worker;
mod pytorch;
mod queue;
mod ragged;
mod receive_memory;
mod recorded;
mod redis;
mod replay_config;
mod repository;
mod reshape;
mod response_cache;
mod row_costs;
mod row_shares;
mod run_limit;
mod run_memory;
mod safetensors;
mod scarcity;
mod scheduling;
mod sequence_clients;
mod sequences;
mod serve;
mod server_timing;
mod shared_memory;
mod signals;
mod slots;
mod sockets;
mod software_gpu;
mod spread;
mod stale_answers;
mod statistics;
mod steps;
mod stop_signals;
mod streams;
mod supervision;
mod supply_chain;
mod tei_metrics;
mod terminal;
mod text_admission;
mod text_example;
mod text_folders;
mod text_interfaces;
mod tls;
mod trace;
mod trees;
mod triton_backends;
mod typescript;
mod warm_up;
