//! Our CUDA kernels, as seen from Rust: the table of their entries, and pure functions from a shape to launches
//! ([`topk`], [`reshape`], [`pointwise`]), each with its CPU twin: a function that computes the same on the CPU. The
//! GPU executor loads [`KernelModule::ptx`] and runs [`KernelLaunch`]es; nothing here knows the driver. `kernels/*.cu`
//! is the source of the PTX, and `tests/it/kernels.rs` compares the table with the PTX and the kernels with the twins.

pub mod pointwise;
pub mod reshape;
pub mod topk;

use smallvec::SmallVec;

use base::error::Error;

/// One kernel of a module.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelEntry {
    /// Its `.entry` in the PTX.
    pub name: &'static str,
    /// The module that has it.
    pub module: KernelModule,
    /// Threads of a block, always `[threads, 1, 1]`, and the most that it is compiled for.
    pub threads: u32,
    /// Its parameters in order, each a name and a type.
    pub parameters: &'static [(&'static str, KernelParameter)],
}

/// A file of `kernels/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelModule {
    /// Bias, activations, sums and products with broadcasting, softmax.
    Pointwise,
    /// Gather, scatter, transposition.
    Reshape,
    /// Top-k: the largest values of each row.
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

    /// Its PTX, for any GPU from compute capability 7.5 on; the driver compiles it when it is loaded.
    pub const fn ptx(self) -> &'static str {
        match self {
            Self::Pointwise => include_str!("../../../../kernels/pointwise.ptx"),
            Self::Reshape => include_str!("../../../../kernels/reshape.ptx"),
            Self::Topk => include_str!("../../../../kernels/topk.ptx"),
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

/// A buffer that a launch reads or writes, by its role; the caller of the launch knows the addresses. Every buffer
/// begins on a multiple of [`BUFFER_ALIGNMENT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferRole {
    /// The tensor that is read, or the memory that source offsets count from.
    Input,
    /// The second operand.
    Right,
    /// The tensor that is written, or the memory that target offsets count from. In a top-k, the values.
    Output,
    /// In a top-k, the indices.
    Indices,
    /// In a reshape, its table of [`reshape::CopyPart`]s or [`reshape::BoxPart`]s.
    Parts,
    /// [`LaunchPlan::scratch_size`] bytes with any contents, for the plan alone until its last launch is done.
    Scratch,
}

/// The value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelArgument {
    /// The address of a buffer.
    Buffer(BufferRole),
    /// The null address: the kernel skips that part of its work.
    Nowhere,
    /// A number.
    U32(u32),
    /// A number.
    U64(u64),
}

impl KernelArgument {
    /// The parameter type that it fits.
    pub const fn parameter(self) -> KernelParameter {
        match self {
            Self::Buffer(_) | Self::Nowhere => KernelParameter::Pointer,
            Self::U32(_) => KernelParameter::U32,
            Self::U64(_) => KernelParameter::U64,
        }
    }
}

/// One launch of one kernel, complete except for the addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLaunch {
    /// The kernel.
    pub entry: &'static KernelEntry,
    /// Blocks, in x and y; z is 1.
    pub grid: [u32; 2],
    /// Bytes of dynamic shared memory, at most 48 KiB; the kernels use no static shared memory.
    pub shared_size: u32,
    /// The parameters' values, in order.
    pub arguments: SmallVec<[KernelArgument; 12]>,
}

impl KernelLaunch {
    /// A launch whose arguments must have the types of the entry's parameters.
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

/// Launches that run one after another on one CUDA stream. Empty if there is nothing to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchPlan {
    /// In order; each sees what those before it wrote.
    pub launches: SmallVec<[KernelLaunch; 2]>,
    /// Size of [`BufferRole::Scratch`] in bytes.
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

/// The error of a shape or datatype that no kernel supports.
fn refused(text: String) -> Error {
    Error::unsupported(text)
}

/// Buffers begin on a multiple of this many bytes, since kernels read 16 at a time.
pub const BUFFER_ALIGNMENT: usize = 16;

/// The most blocks along y (CUDA C++ Programming Guide, table of technical specifications; x has 2^31 - 1).
const GRID_Y_MAX: u32 = 65_535;

/// The most shared memory of a block, in bytes, without opting in to more through the driver (the same table).
const SHARED_SIZE_MAX: u32 = 48 * 1024;
