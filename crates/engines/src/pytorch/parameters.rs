//! The parameters of Triton's PyTorch backend. Those that are for GPUs alone (`DISABLE_CUDNN`, `ENABLE_CACHE_CLEANING`) are
//! read and have no effect on the CPU.

use base::error::Error;
use model::ModelSpec;

/// The way in which a module is loaded and runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TorchParameters {
    /// The options of each run, as the shim takes them.
    pub(super) options: RunOptions,
    /// `ENABLE_WEIGHT_SHARING`: all instances run one module.
    pub(super) shares_weights: bool,
    /// `INTRA_OP_THREAD_COUNT`: threads that a run computes on; `None` for those of the instance.
    pub(super) threads: Option<u16>,
    /// `INTER_OP_THREAD_COUNT`: threads for parts of a module that run side by side; `None` for as
    /// many as there are cores.
    pub(super) interop_threads: Option<u16>,
}

/// A set of bits; the same as in `shim.cpp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RunOptions(pub(super) u32);

/// The bits of an option that PyTorch decides unless it is given.
struct SwitchBits {
    /// The bit of an option that is given.
    is_given: u32,
    /// The bit of its value.
    is_on: u32,
}

impl RunOptions {
    const UNOPTIMIZED: u32 = 1;
    const INFERENCE_MODE: u32 = 1 << 1;
    const EXECUTOR: SwitchBits = SwitchBits { is_given: 1 << 2, is_on: 1 << 3 };
    const PROFILING: SwitchBits = SwitchBits { is_given: 1 << 4, is_on: 1 << 5 };
    const FUSER: SwitchBits = SwitchBits { is_given: 1 << 6, is_on: 1 << 7 };

    fn set(&mut self, bit: u32, is_set: bool) {
        self.0 |= if is_set { bit } else { 0 };
    }

    fn set_if_given(&mut self, bits: SwitchBits, value: Option<bool>) {
        self.set(bits.is_given, value.is_some());
        self.set(bits.is_on, value == Some(true));
    }
}

impl TorchParameters {
    /// Reads them.
    ///
    /// # Errors
    ///
    /// For a value that its parameter does not allow.
    pub(super) fn read(spec: &ModelSpec) -> Result<Self, Error> {
        let mut options = RunOptions::default();
        options.set(RunOptions::UNOPTIMIZED, flag(spec, "DISABLE_OPTIMIZED_EXECUTION")? == Some(true));
        options.set(RunOptions::INFERENCE_MODE, flag(spec, "INFERENCE_MODE")? != Some(false));
        options.set_if_given(RunOptions::EXECUTOR, flag(spec, "ENABLE_JIT_EXECUTOR")?);
        options.set_if_given(RunOptions::PROFILING, flag(spec, "ENABLE_JIT_PROFILING")?);
        options.set_if_given(RunOptions::FUSER, flag(spec, "ENABLE_TENSOR_FUSER")?);
        ["DISABLE_CUDNN", "ENABLE_CACHE_CLEANING"].iter().try_for_each(|key| flag(spec, key).map(drop))?;
        Ok(Self {
            options,
            shares_weights: flag(spec, "ENABLE_WEIGHT_SHARING")? == Some(true),
            threads: count(spec, "INTRA_OP_THREAD_COUNT")?,
            interop_threads: count(spec, "INTER_OP_THREAD_COUNT")?,
        })
    }
}

/// `true` or `false`, or a number as Triton also takes it.
fn flag(spec: &ModelSpec, key: &str) -> Result<Option<bool>, Error> {
    let Some(text) = spec.parameters.get(key) else { return Ok(None) };
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(Some(true)),
        "false" | "0" => Ok(Some(false)),
        _ => Err(wrong(spec, key, "true or false")),
    }
}

/// A number of threads; as in Triton 0 or less sets none.
fn count(spec: &ModelSpec, key: &str) -> Result<Option<u16>, Error> {
    let Some(text) = spec.parameters.get(key) else { return Ok(None) };
    match text.trim().parse::<i64>() {
        Ok(count) if count <= 0 => Ok(None),
        Ok(count) => u16::try_from(count).map(Some).map_err(|_| wrong(spec, key, "at most 65535 threads")),
        Err(_) => Err(wrong(spec, key, "a number of threads")),
    }
}

fn wrong(spec: &ModelSpec, key: &str, expected: &str) -> Error {
    let value = spec.parameters.get(key).map_or("", String::as_str);
    let name = &spec.name;
    Error::invalid(format!("parameter '{key}' of model '{name}' is '{}', expected {expected}", value.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::trial;

    fn read(parameters: &[(&str, &str)]) -> Result<TorchParameters, String> {
        let mut spec = trial::spec(0, &[], &[]);
        spec.parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        TorchParameters::read(&spec).map_err(|error| error.text().to_owned())
    }

    #[test]
    fn what_is_not_given_is_left_as_it_is_but_inference_mode_is_on() {
        let options = |parameters: &[(&str, &str)]| read(parameters).unwrap().options.0;
        assert_eq!(options(&[]), 0b10);
        assert_eq!(options(&[("INFERENCE_MODE", "false")]), 0);
        assert_eq!(options(&[("DISABLE_OPTIMIZED_EXECUTION", "true")]), 0b11);
        assert_eq!(options(&[("ENABLE_JIT_EXECUTOR", "true")]), 0b1110);
        assert_eq!(options(&[("ENABLE_JIT_PROFILING", "false")]), 0b1_0010);
        assert_eq!(options(&[("ENABLE_TENSOR_FUSER", "TRUE")]), 0b1100_0010);
        let shared = read(&[("ENABLE_WEIGHT_SHARING", "true"), ("INTRA_OP_THREAD_COUNT", "3")]).unwrap();
        assert_eq!((shared.shares_weights, shared.threads, shared.interop_threads), (true, Some(3), None));
        assert_eq!(read(&[("INTER_OP_THREAD_COUNT", "-1")]).unwrap().interop_threads, None);
    }

    #[test]
    fn a_value_that_is_none_is_refused_with_what_was_expected() {
        let refused = |key: &str, value: &str, want: &str| assert_eq!(read(&[(key, value)]), Err(want.to_owned()));
        refused("INFERENCE_MODE", "yes", "parameter 'INFERENCE_MODE' of model 'm' is 'yes', expected true or false");
        refused("DISABLE_CUDNN", "", "parameter 'DISABLE_CUDNN' of model 'm' is '', expected true or false");
        let want = "parameter 'INTRA_OP_THREAD_COUNT' of model 'm' is 'all', expected a number of threads";
        refused("INTRA_OP_THREAD_COUNT", "all", want);
        let want = "parameter 'INTER_OP_THREAD_COUNT' of model 'm' is '65536', expected at most 65535 threads";
        refused("INTER_OP_THREAD_COUNT", "65536", want);
    }
}
