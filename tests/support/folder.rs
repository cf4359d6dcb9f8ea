//! Temporary folders beneath `target/tmp`, removed when dropped. Used by every integration test that needs files.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

/// A folder that exists as long as this value.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes an empty folder whose name begins with `name`.
    pub fn new(name: &str) -> Self {
        super::time_limit::watch();
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = target().join("tmp").join(format!("{name}-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("the target folder can be written");
        Self { path }
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind does not fail a test that passed.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Cargo's `target` folder, where the Python environment is kept between runs.
pub fn target() -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    temporary.parent().expect("CARGO_TARGET_TMPDIR is target/tmp").to_path_buf()
}
