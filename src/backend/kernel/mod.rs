//! Our kernels, as seen from Rust: the table of their entries, and pure functions from a shape to the launches that do
//! the work ([`topk`], [`reshape`], [`pointwise`]), each beside its CPU twin. The GPU executor loads [`KernelModule::ptx`]
//! and runs [`KernelLaunch`]es; nothing here knows the driver. `kernels/*.cu` is the source of the PTX, and `tests/it/kernels.rs`
//! holds the table to it and the kernels to the twins.

pub mod pointwise;
pub mod reshape;
pub mod topk;

use smallvec::SmallVec;

use crate::error::Error;

/// One kernel of a module.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelEntry {
    /// Its `.entry` in the PTX.
    pub name: &'static str,
    /// Where it is.
    pub module: KernelModule,
    /// Threads of a block, always `[threads, 1, 1]`. It is compiled for no more.
    pub threads: u32,
    /// What it takes, in order.
    pub parameters: &'static [(&'static str, KernelParameter)],
}

/// A file of `kernels/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelModule {
    /// Bias, activations, sums and products with broadcasting, softmax.
    Pointwise,
    /// Gather, scatter, padding, transposition, casts.
    Reshape,
    /// The best of each row.
    Topk,
}

impl KernelModule {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pointwise, Self::Reshape, Self::Topk];

    /// The name of its file, without extension.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pointwise => "pointwise",
            Self::Reshape => "reshape",
            Self::Topk => "topk",
        }
    }

    /// Its code, for any GPU from compute capability 7.5; the driver compiles it when it is loaded.
    pub const fn ptx(self) -> &'static str {
        match self {
            Self::Pointwise => include_str!("../../../kernels/pointwise.ptx"),
            Self::Reshape => include_str!("../../../kernels/reshape.ptx"),
            Self::Topk => include_str!("../../../kernels/topk.ptx"),
        }
    }
}

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelParameter {
    /// A device address; `.u64` in PTX.
    Pointer,
    /// `.u32`.
    U32,
    /// `.u64`.
    U64,
}

/// What a launch reads or writes, by its part in the work; who launches knows where it lies. Every buffer begins on a
/// multiple of [`BUFFER_ALIGNMENT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferRole {
    /// What is read: the tensor, or the memory that offsets count from.
    Input,
    /// The second operand.
    Right,
    /// What is written: the tensor, or the memory that offsets count from. Of a top-k the values.
    Output,
    /// Of a top-k the indices.
    Indices,
    /// Of a reshape its table of [`reshape::CopyPart`]s or [`reshape::BoxPart`]s.
    Parts,
    /// [`LaunchPlan::scratch_size`] bytes of anything, in no use until the plan's last launch is done.
    Scratch,
}

/// The value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelArgument {
    /// The address of a buffer.
    Buffer(BufferRole),
    /// No address: the kernel leaves that part of its work out.
    Nowhere,
    /// A number.
    U32(u32),
    /// A number.
    U64(u64),
}

impl KernelArgument {
    /// The type of the parameter that it is for.
    pub const fn parameter(self) -> KernelParameter {
        match self {
            Self::Buffer(_) | Self::Nowhere => KernelParameter::Pointer,
            Self::U32(_) => KernelParameter::U32,
            Self::U64(_) => KernelParameter::U64,
        }
    }
}

/// One launch of one kernel, complete but for the addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLaunch {
    /// What runs.
    pub entry: &'static KernelEntry,
    /// Blocks, in x and y; z is 1.
    pub grid: [u32; 2],
    /// Bytes of dynamic shared memory, at most 48 KiB; kernels have no other.
    pub shared_size: u32,
    /// The parameters' values, in order.
    pub arguments: SmallVec<[KernelArgument; 12]>,
}

impl KernelLaunch {
    /// A launch whose arguments are of the types that the entry takes.
    fn new(entry: &'static KernelEntry, grid: [u32; 2], shared_size: u32, arguments: &[KernelArgument]) -> Self {
        debug_assert!(
            arguments.iter().map(|argument| argument.parameter()).eq(entry.parameters.iter().map(|(_, kind)| *kind)),
            "{} takes other parameters",
            entry.name
        );
        debug_assert!(grid[0] > 0 && grid[1] > 0 && grid[1] <= GRID_Y_MAX && shared_size <= SHARED_SIZE_MAX);
        Self { entry, grid, shared_size, arguments: arguments.into() }
    }
}

/// Launches that follow one another on one CUDA stream. No launch: nothing is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchPlan {
    /// In order; each sees what those before it wrote.
    pub launches: SmallVec<[KernelLaunch; 2]>,
    /// Bytes behind [`BufferRole::Scratch`].
    pub scratch_size: usize,
}

impl LaunchPlan {
    fn one(launch: KernelLaunch) -> Self {
        Self { launches: SmallVec::from_iter([launch]), scratch_size: 0 }
    }
}

/// Every entry of every module.
pub fn entries() -> impl Iterator<Item = &'static KernelEntry> {
    topk::ENTRIES.iter().chain(&reshape::ENTRIES).chain(&pointwise::ENTRIES)
}

/// A shape that no launch is planned for, which is told by name.
fn refused(text: String) -> Error {
    Error::unsupported(text)
}

/// Buffers begin on a multiple of so many bytes: kernels read 16 at a time.
pub const BUFFER_ALIGNMENT: usize = 16;

/// Blocks along y (CUDA C++ Programming Guide, table of technical specifications; x has 2^31 - 1).
const GRID_Y_MAX: u32 = 65_535;

/// Shared memory of a block that needs no permission of the driver (the same table).
const SHARED_SIZE_MAX: u32 = 48 * 1024;
