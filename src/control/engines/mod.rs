//! The engines that run models: searched for, chosen and held. Libraries of frameworks, GPUs, backends written for Triton,
//! Python, processes of isolated models. Called on load threads.

pub mod config_completion;
pub mod engine;
pub mod frameworks;
pub mod gpu_check;
pub mod gpu_engine;
pub mod hosted_backends;
pub mod internal_sink;
pub mod isolated_backend;
pub mod isolated_engine;
pub mod isolation;
pub mod library_isolation;
pub mod library_search;
pub mod model_services;
pub mod python;
pub mod pytorch_engine;
pub mod pytorch_shim;
