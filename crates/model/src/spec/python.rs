//! Settings of a Python model besides its tensors: the file to import, and the start of its processes.

use std::time::Duration;

/// A Python model, or a model of a Python-based backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PythonModel {
    /// The file to import, below the version's directory; for a Python-based backend, in the backend's own directory.
    pub file: String,
    /// True if the backend is Python-based: its code is `file` in its directory beneath `--backend-directory`, and the
    /// model has data alone.
    pub is_backend: bool,
    /// `EXECUTION_ENV_PATH`, as written: an archive or a directory with the interpreter; `$$TRITON_MODEL_DIRECTORY` is
    /// not replaced.
    pub environment: Option<String>,
    /// `execute_timeout_ms`: how long one batch may take before its process is ended; `None` for as long as it likes.
    pub execute_timeout: Option<Duration>,
    /// `execute_concurrency`: batches that one process runs at once; `None` if the model does not say. 1 for a model that
    /// serves sequences.
    pub concurrency: Option<usize>,
    /// `check_outputs`: true if an output that differs from its declaration fails the request; `None` for the server's
    /// default.
    pub checks_outputs: Option<bool>,
    /// True if `execute` may get several requests at once: the model has a scheduler.
    pub is_batched: bool,
    /// `fork_instances`: true if instances are forked from a process that has imported the model, false if not; `None` as
    /// the server's flag says.
    pub forks: Option<bool>,
}

/// The file of the server's own that runs PyTorch models in Python; a process gets it with the program.
pub const PYTORCH_MODULE: &str = "deuteron_pytorch.py";
/// The same for Caffe2 models.
pub const CAFFE2_MODULE: &str = "deuteron_caffe2.py";

impl PythonModel {
    /// Returns true if its file is one of the server's own, and not on the disk.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.is_backend && [CAFFE2_MODULE, PYTORCH_MODULE].contains(&self.file.as_str())
    }

    /// The name under which the file is imported. As in Triton a version is a namespace package, so that a model may
    /// import files beside it relatively.
    ///
    /// ```
    /// use model::PythonModel;
    ///
    /// let model = |file: &str, is_backend| PythonModel { file: file.to_owned(), is_backend, ..PythonModel::default()
    /// }; assert_eq!(model("model.py", false).module_name(3), "3.model"); assert_eq!(model("parts/main.py",
    /// false).module_name(3), "parts.main"); assert_eq!(model("model.py", true).module_name(3), "model");
    /// ```
    pub fn module_name(&self, version: u64) -> String {
        let stem = self.file.strip_suffix(".py").unwrap_or(&self.file);
        match stem.contains('/') {
            _ if self.is_backend => stem.to_owned(),
            true => stem.replace('/', "."),
            false => format!("{version}.{stem}"),
        }
    }
}
