//! The model repositories: models on disks and in stores, their files and identities. Files are opened beneath a repository
//! only. Called on threads of loads and scans.

pub mod beneath;
mod hub_cache;
pub mod hub_folder;
pub mod hub_graph;
pub mod model_identity;
pub mod model_source;
pub mod pinned_files;
pub mod repositories;
pub mod stores;
mod tensor_files;
pub mod uploaded_files;
