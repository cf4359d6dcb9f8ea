//! From a model's directory to a loaded version: checks, trials, the engine's load, measurements, warm-up. Begins at
//! [`model_loader::ModelLoader::load_version`]. Runs on load threads; knows nothing of shards and of the control thread.

pub mod agents;
pub mod batch_axis;
pub mod checksum;
pub mod engine_load;
pub mod hosted_files;
pub mod load_display;
pub mod load_failure;
pub mod load_log;
pub mod load_probe;
pub mod load_trial;
pub mod loaded_version;
pub mod model_loader;
pub mod placement;
pub mod trial_process;
mod vetted_model;
pub mod warm_up;
