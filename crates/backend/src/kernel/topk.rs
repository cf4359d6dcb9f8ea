//! Top-k: the largest values of each row. Chooses the kernel, the number of blocks and the memory.
//! `docs/decisions/0009-top-k-on-the-gpu.md` describes the kernels and the reasons of the
//! strategies' limits; the CPU twin is `tensor::topk`.
//!
//! `argmax` is a top-1 without `has_values`: the lowest index among equal values, and that of a NaN
//! only if a row has nothing else.

use super::KernelArgument::{Buffer, Nowhere, U32};
use super::{
    BufferRole, KernelArgument, KernelEntry, KernelLaunch, KernelModule, KernelParameter, LaunchPlan, SHARED_SIZE_MAX,
    refused,
};
use base::error::Error;
use base::limits::{CLASSES_MAX, GPU_TOPK_COUNT_MAX};
use base::tensor::Datatype;

/// Rows of one top-k selection on a GPU: sixteen times the largest batch, which keeps sizes far from 32 bits.
const GPU_TOPK_ROWS_MAX: usize = 65_536;

/// The `count` largest values of each row of a `[rows, classes]` tensor, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// FP32, INT32 or UINT32.
    pub datatype: Datatype,
    /// Rows; may be 0.
    pub rows: usize,
    /// Values in a row.
    pub classes: usize,
    /// The number of values of each row; `min(count, classes)` are written.
    pub count: usize,
    /// True if the values are written too, unchanged, and not only the indices.
    pub has_values: bool,
    /// The type of the indices.
    pub index: TopKIndex,
}

/// The type of the indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopKIndex {
    /// That of ONNX.
    I64,
    /// Half the bytes to download.
    U32,
}

impl TopKIndex {
    /// Bytes of one index.
    pub const fn size(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::U32 => 4,
        }
    }
}

/// The distribution of rows over warps and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopKStrategy {
    /// A warp for each row.
    Warp,
    /// A block for each row.
    Block,
    /// This many blocks for each row, whose results one more block merges.
    Split(u32),
}

impl TopK {
    /// The launches on a GPU with this many multiprocessors. They read [`BufferRole::Input`] and write
    /// [`BufferRole::Indices`] and, with `has_values`, [`BufferRole::Output`].
    ///
    /// # Errors
    ///
    /// Unsupported, if the datatype is not numeric or the sizes are beyond `GPU_TOPK_COUNT_MAX` and
    /// its like.
    pub fn plan(&self, multiprocessors: u32) -> Result<LaunchPlan, Error> {
        let Some(order) = order(self.datatype) else {
            return Err(refused(format!("no top-k of {} on the GPU", self.datatype.name())));
        };
        let count = self.count.min(self.classes);
        if self.classes > CLASSES_MAX || count > GPU_TOPK_COUNT_MAX || self.rows > GPU_TOPK_ROWS_MAX {
            let (rows, classes) = (self.rows, self.classes);
            return Err(refused(format!("no top-k of {count} of {classes} classes in {rows} rows on the GPU")));
        }
        if count == 0 || self.rows == 0 {
            return Ok(LaunchPlan::default());
        }
        // No bound is above 2^20.
        let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let values = if self.has_values { Buffer(BufferRole::Output) } else { Nowhere };
        let shape = TopKShape {
            rows: narrow(self.rows),
            classes: narrow(self.classes),
            count: narrow(count),
            order: U32(order),
            targets: [Buffer(BufferRole::Input), values, Buffer(BufferRole::Indices)],
            index_size: U32(narrow(self.index.size())),
        };
        Ok(match self.strategy(multiprocessors) {
            TopKStrategy::Warp => LaunchPlan::one(shape.warp()),
            TopKStrategy::Block => LaunchPlan::one(shape.block(1)),
            TopKStrategy::Split(segments) => shape.split(segments),
        })
    }

    /// The strategy on a GPU with this many multiprocessors.
    pub fn strategy(&self, multiprocessors: u32) -> TopKStrategy {
        let multiprocessors = usize::try_from(multiprocessors.max(1)).unwrap_or(usize::MAX);
        let fills_by_warps = self.rows >= multiprocessors.saturating_mul(WARPS_PER_MULTIPROCESSOR);
        let warp_classes_max = if fills_by_warps { WARP_CLASSES_MAX } else { WARP_CLASSES_MAX_FEW_ROWS };
        if self.count.min(self.classes) <= WARP_COUNT_MAX && self.classes <= warp_classes_max {
            return TopKStrategy::Warp;
        }
        let wanted = multiprocessors.saturating_mul(BLOCKS_PER_MULTIPROCESSOR).div_ceil(self.rows.max(1));
        let segment_min = SEGMENT_MIN.max(self.count.saturating_mul(SEGMENT_MIN_COUNTS));
        match wanted.min(self.classes / segment_min) {
            0 | 1 => TopKStrategy::Block,
            segments => TopKStrategy::Split(u32::try_from(segments).unwrap_or(u32::MAX)),
        }
    }
}

/// The parameters of the three kernels, in their types.
struct TopKShape {
    rows: u32,
    classes: u32,
    count: u32,
    order: KernelArgument,
    targets: [KernelArgument; 3],
    index_size: KernelArgument,
}

impl TopKShape {
    fn warp(&self) -> KernelLaunch {
        let entry = &ENTRIES[0];
        let [input, values, indices] = self.targets;
        let (rows, classes, count) = (U32(self.rows), U32(self.classes), U32(self.count));
        let arguments = [input, values, indices, rows, classes, count, self.order, self.index_size];
        let warps = entry.threads / WARP_LANES;
        let shared_size = warps * selection_size(WARP_CAPACITY);
        KernelLaunch::new(entry, [self.rows.div_ceil(warps), 1], shared_size, &arguments)
    }

    fn block(&self, segments: u32) -> KernelLaunch {
        let [input, values, indices] = self.targets;
        let scratch = if segments > 1 { Buffer(BufferRole::Scratch) } else { Nowhere };
        let (classes, count) = (U32(self.classes), U32(self.count));
        let order = self.order;
        let capacity = capacity(self.count);
        let arguments =
            [input, values, indices, scratch, classes, count, order, self.index_size, U32(segments), U32(capacity)];
        let shared_size = selection_size(capacity);
        KernelLaunch::new(&ENTRIES[1], [self.rows * segments, 1], shared_size, &arguments)
    }

    fn split(&self, segments: u32) -> LaunchPlan {
        let last = self.classes - (segments - 1) * self.classes.div_ceil(segments);
        debug_assert!(last >= self.count, "a segment of {last} keeps {}", self.count);
        let [input, values, indices] = self.targets;
        let capacity = capacity(self.count);
        let arguments = [
            input,
            values,
            indices,
            Buffer(BufferRole::Scratch),
            U32(self.classes),
            U32(self.count),
            self.index_size,
            U32(segments),
            U32(capacity),
        ];
        let shared_size = selection_size(capacity);
        let merge = KernelLaunch::new(&ENTRIES[2], [self.rows, 1], shared_size, &arguments);
        let kept = [self.rows, segments, self.count].into_iter().map(|size| size as usize).product::<usize>();
        LaunchPlan {
            launches: [self.block(segments), merge].into_iter().collect(),
            scratch_size: kept * CANDIDATE_SIZE as usize,
        }
    }
}

/// The order of the bits of a four-byte datatype: 0 unsigned, 1 signed, 2 IEEE float.
const fn order(datatype: Datatype) -> Option<u32> {
    match datatype {
        Datatype::Uint32 => Some(0),
        Datatype::Int32 => Some(1),
        Datatype::Fp32 => Some(2),
        _ => None,
    }
}

/// Bytes of a candidate (sort key and index) in shared and in scratch memory.
const CANDIDATE_SIZE: u32 = 8;

/// Shared memory of a selection in bytes: its candidates, one candidate for each of 32 groups of lanes, and the count
/// of candidates.
const fn selection_size(capacity: u32) -> u32 {
    (capacity + WARP_LANES) * CANDIDATE_SIZE + 16
}

/// The candidates that a block collects before it sorts them and keeps the best `count`. A power of two, at least half
/// of which are new.
const fn capacity(count: u32) -> u32 {
    let twice = 2 * count.next_power_of_two();
    if twice > BLOCK_CAPACITY_MIN { twice } else { BLOCK_CAPACITY_MIN }
}

const WARP_LANES: u32 = 32;
/// Candidates of a warp.
const WARP_CAPACITY: u32 = 128;
const BLOCK_CAPACITY_MIN: u32 = 512;

/// A warp's first bound is the smallest of its 32 lanes' largest values, which is valid for at most 32 values.
const WARP_COUNT_MAX: usize = 32;
/// A warp reads 4 KiB at a time. Beyond four times that a block is as fast, even with enough rows
/// to fill the GPU.
const WARP_CLASSES_MAX: usize = 4096;
/// The limit with fewer rows than that, when the latency of a row counts.
const WARP_CLASSES_MAX_FEW_ROWS: usize = 1024;
/// Rows that fill a multiprocessor.
const WARPS_PER_MULTIPROCESSOR: usize = 16;
/// Four blocks fit a multiprocessor at once; four rounds of them even out the load at the end.
const BLOCKS_PER_MULTIPROCESSOR: usize = 16;
/// The 4-byte values that a block reads at a time: a smaller segment would leave threads idle.
const SEGMENT_MIN: usize = 8192;
/// A segment has at least this many times `count` values: it passes on `count` of them, which must
/// be few of its values, and the last, shorter segment must have at least `count`.
const SEGMENT_MIN_COUNTS: usize = 16;

const _: () = assert!(
    selection_size(capacity(GPU_TOPK_COUNT_MAX as u32)) <= SHARED_SIZE_MAX,
    "the largest selection fits a block"
);

const fn entry(
    name: &'static str,
    threads: u32,
    parameters: &'static [(&'static str, KernelParameter)],
) -> KernelEntry {
    KernelEntry { name, module: KernelModule::Topk, threads, parameters }
}

/// By a warp, by a block, and the merge of the blocks' results.
pub static ENTRIES: [KernelEntry; 3] =
    [entry("topk_warp_32", 128, WARP), entry("topk_block_32", 256, BLOCK), entry("topk_merge_narrow", 256, MERGE)];

const WARP: &[(&str, KernelParameter)] = &[INPUT, VALUES, INDICES, number("rows"), CLASSES, COUNT, ORDER, INDEX_SIZE];
const BLOCK: &[(&str, KernelParameter)] =
    &[INPUT, VALUES, INDICES, SCRATCH, CLASSES, COUNT, ORDER, INDEX_SIZE, SEGMENTS, CAPACITY];
const MERGE: &[(&str, KernelParameter)] =
    &[INPUT, VALUES, INDICES, SCRATCH, CLASSES, COUNT, INDEX_SIZE, SEGMENTS, CAPACITY];

const INPUT: (&str, KernelParameter) = pointer("input");
const VALUES: (&str, KernelParameter) = pointer("values");
const INDICES: (&str, KernelParameter) = pointer("indices");
const SCRATCH: (&str, KernelParameter) = pointer("scratch");
const CLASSES: (&str, KernelParameter) = number("classes");
const COUNT: (&str, KernelParameter) = number("count");
const ORDER: (&str, KernelParameter) = number("order");
const INDEX_SIZE: (&str, KernelParameter) = number("index_size");
const SEGMENTS: (&str, KernelParameter) = number("segments");
const CAPACITY: (&str, KernelParameter) = number("capacity");

const fn pointer(name: &str) -> (&str, KernelParameter) {
    (name, KernelParameter::Pointer)
}

const fn number(name: &str) -> (&str, KernelParameter) {
    (name, KernelParameter::U32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(rows: usize, classes: usize, count: usize) -> TopK {
        TopK { datatype: Datatype::Fp32, rows, classes, count, has_values: true, index: TopKIndex::U32 }
    }

    #[test]
    fn the_strategy_follows_the_shape_and_the_gpu() {
        let check = |rows, classes, count, multiprocessors, want| {
            let got = request(rows, classes, count).strategy(multiprocessors);
            assert_eq!(got, want, "{count} of {rows} x {classes}, {multiprocessors}");
        };
        check(4096, 1000, 5, 132, TopKStrategy::Warp);
        check(1, 1024, 32, 132, TopKStrategy::Warp);
        check(1, 1025, 32, 132, TopKStrategy::Block);
        check(16 * 132, 4096, 5, 132, TopKStrategy::Warp);
        check(16 * 132 - 1, 4096, 5, 132, TopKStrategy::Block);
        check(16 * 132, 4097, 5, 132, TopKStrategy::Block);
        check(1, 1000, 33, 132, TopKStrategy::Block);
        // A count above the number of classes returns all.
        check(1, 30, 1000, 132, TopKStrategy::Warp);
        check(64, 1_000_000, 5, 132, TopKStrategy::Split(33));
        check(1, 1_000_000, 5, 132, TopKStrategy::Split(122));
        check(1, 1_000_000, 1024, 132, TopKStrategy::Split(61));
        check(4096, 1_000_000, 5, 132, TopKStrategy::Block);
        // A GPU without known properties.
        check(1, 1_000_000, 5, 0, TopKStrategy::Split(16));
    }

    #[test]
    fn a_split_row_takes_scratch_for_what_its_segments_keep() {
        let plan = request(64, 1_000_000, 5).plan(132).unwrap();
        assert_eq!(plan.scratch_size, 64 * 33 * 5 * 8);
        let entries: Vec<_> = plan.launches.iter().map(|launch| (launch.entry.name, launch.grid)).collect();
        assert_eq!(entries, [("topk_block_32", [64 * 33, 1]), ("topk_merge_narrow", [64, 1])]);
        let many = request(1, 100_000, 1024).plan(4).unwrap();
        assert_eq!(many.scratch_size, 6 * 1024 * 8);
        assert_eq!(many.launches[0].shared_size, (2048 + 32) * 8 + 16);
    }

    #[test]
    fn no_work_is_no_launch_and_what_is_too_much_is_refused_by_name() {
        for (rows, classes, count) in [(0, 10, 5), (3, 0, 5), (3, 10, 0)] {
            assert_eq!(request(rows, classes, count).plan(132).unwrap(), LaunchPlan::default());
        }
        let refused = |request: TopK| request.plan(132).unwrap_err().text().to_owned();
        assert_eq!(refused(request(1, 2000, 1025)), "no top-k of 1025 of 2000 classes in 1 rows on the GPU");
        assert_eq!(refused(request(1, 1_000_001, 1)), "no top-k of 1 of 1000001 classes in 1 rows on the GPU");
        assert_eq!(refused(request(65_537, 2, 1)), "no top-k of 1 of 2 classes in 65537 rows on the GPU");
        let of = |datatype| TopK { datatype, ..request(1, 10, 5) };
        assert_eq!(refused(of(Datatype::Int64)), "no top-k of INT64 on the GPU");
        assert!(request(1, 1000, 1024).plan(132).is_ok(), "all of a row are few enough");
    }
}
