//! A model of a backend that is a shared library of Triton's (`libtriton_NAME.so`).

/// The properties of a model beside its tensors that the host of such backends gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostedLibrary {
    /// The file of the library: `libtriton_NAME.so`, or the `runtime` of the configuration.
    pub file: String,
    /// The outputs that requests may ask for; they come first, the others are states.
    pub outputs_asked: usize,
    /// The outputs that are states of sequences.
    pub states: Vec<usize>,
    /// True if the model serves sequences.
    pub is_sequence: bool,
    /// True if its requests may run again (`iterative_sequence`).
    pub is_iterative: bool,
}
