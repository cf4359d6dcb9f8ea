//! Model repositories in stores: S3, Google Cloud Storage, Azure, and HTTP. `mirror` keeps a copy on disk, which the rest of
//! the server takes for a repository; the store's thread, in builds with the feature `stores`, lists and fetches.

#[cfg(feature = "stores")]
mod client;
#[cfg(feature = "stores")]
mod connector;
pub mod fault;
#[cfg(feature = "stores")]
mod fetch;
pub mod mirror;
#[cfg(feature = "stores")]
mod thread;

pub use mirror::StoreNames;

use std::sync::Arc;

use crate::control::repository::stores::mirror::{ObjectSource, StoreMirror};
use crate::error::Error;
use crate::metrics::StoreCells;
use crate::settings::{Settings, StoreUrl};

/// Opens a store and its mirror, without a request to the store.
///
/// # Errors
/// `InvalidArgument` for settings and credentials that cannot be used, `Internal` for a cache that cannot be written;
/// `Unsupported` in a build without stores, whose settings refuse their URLs.
pub fn open(url: StoreUrl, settings: &Settings) -> Result<StoreMirror, Error> {
    let cells = Arc::new(StoreCells { store: url.text.clone(), ..StoreCells::default() });
    let source = source(&url, settings, &cells)?;
    StoreMirror::open(url, source, &settings.stores, cells)
}

#[cfg(feature = "stores")]
fn source(url: &StoreUrl, settings: &Settings, cells: &Arc<StoreCells>) -> Result<Box<dyn ObjectSource>, Error> {
    Ok(Box::new(thread::StoreThread::start(url, &settings.stores, cells)?))
}

#[cfg(not(feature = "stores"))]
fn source(_: &StoreUrl, _: &Settings, _: &Arc<StoreCells>) -> Result<Box<dyn ObjectSource>, Error> {
    Err(Error::unsupported("this program was built without model stores (cargo's feature 'stores')"))
}
