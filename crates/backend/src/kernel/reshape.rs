//! Moves bytes on the device: rows of requests into a batch and out of it, and boxes of elements
//! within the rows of a batch. Tables of the moves ([`CopyPart`], [`BoxPart`]), and their launches
//! and CPU twins.
//!
//! The kernels read the tables as they are, so they can be made in pinned memory and uploaded. Offsets count bytes from
//! [`BufferRole::Input`] and [`BufferRole::Output`]; of parts in separate allocations that is the lowest address.

use bytemuck::{Pod, Zeroable};

use super::KernelArgument::{Buffer, U32};
use super::{BufferRole, GRID_Y_MAX, KernelEntry, KernelLaunch, KernelModule, KernelParameter, LaunchPlan, refused};
use base::error::Error;

/// A range of bytes to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CopyPart {
    /// Bytes into the input.
    pub source: u64,
    /// Bytes into the output. Fastest if this and the source are multiples of 16.
    pub target: u64,
    /// Bytes to copy; may be 0.
    pub size: u64,
}

/// The launch that copies the parts.
///
/// # Errors
///
/// Unsupported, if there are more parts than a grid has blocks along y.
pub fn copy_plan(parts: &[CopyPart]) -> Result<LaunchPlan, Error> {
    let size_max = parts.iter().map(|part| part.size).max().unwrap_or(0);
    if size_max == 0 {
        return Ok(LaunchPlan::default());
    }
    let grid = [blocks(size_max.div_ceil(16)), part_count(parts.len())?];
    let arguments = [Buffer(BufferRole::Input), Buffer(BufferRole::Output), Buffer(BufferRole::Parts)];
    Ok(LaunchPlan::one(KernelLaunch::new(&ENTRIES[0], grid, 0, &arguments)))
}

/// The CPU twin of [`copy_plan`]; `None` if a part is out of bounds, which the kernel does not
/// check.
pub fn copy(input: &[u8], output: &mut [u8], parts: &[CopyPart]) -> Option<()> {
    for part in parts {
        let size = usize::try_from(part.size).ok()?;
        let target = range(output.len(), part.target, size).and_then(|range| output.get_mut(range))?;
        target.copy_from_slice(range(input.len(), part.source, size).and_then(|range| input.get(range))?);
    }
    Some(())
}

/// The most dimensions of a part, the batch axis included.
pub const RANK_MAX: usize = 6;

/// A box of elements of [`ELEMENT_SIZE`] to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BoxPart {
    /// Bytes into the input, on a multiple of an element's size.
    pub source: u64,
    /// Bytes into the output, with the same alignment.
    pub target: u64,
    /// The distance in elements to the next of each dimension, in the input.
    pub source_strides: [i64; RANK_MAX],
    /// The distance in elements to the next of each dimension, in the output.
    pub target_strides: [i64; RANK_MAX],
    /// Elements in each dimension.
    pub extents: [u32; RANK_MAX],
}

impl BoxPart {
    /// Copies the front of shape `given` out of a tensor of shape `whole`.
    ///
    /// # Errors
    ///
    /// Unsupported, if a shape has too many dimensions or elements.
    pub fn cropped(source: u64, whole: &[u32], target: u64, given: &[u32]) -> Result<Self, Error> {
        let (source_strides, target_strides) = (row_major(whole)?, row_major(given)?);
        Ok(Self { source, target, source_strides, target_strides, extents: sizes(given)? })
    }

    /// Transposes: dimension `i` of the result is dimension `axes[i]` of the source, as in ONNX's Transpose.
    ///
    /// # Errors
    ///
    /// As [`Self::cropped`], or if `axes` is not a permutation.
    pub fn transposed(source: u64, shape: &[u32], target: u64, axes: &[usize]) -> Result<Self, Error> {
        let mut seen = [false; RANK_MAX];
        let strides = row_major(shape)?;
        let mut extents = [1; RANK_MAX];
        let mut source_strides = [0; RANK_MAX];
        for (axis, (extent, stride)) in axes.iter().zip(extents.iter_mut().zip(&mut source_strides)) {
            let (Some(size), Some(from), Some(seen)) = (shape.get(*axis), strides.get(*axis), seen.get_mut(*axis))
            else {
                return Err(refused(format!("axes {axes:?} do not fit shape {shape:?}")));
            };
            if std::mem::replace(seen, true) {
                return Err(refused(format!("axes {axes:?} do not fit shape {shape:?}")));
            }
            (*extent, *stride) = (*size, *from);
        }
        if axes.len() != shape.len() {
            return Err(refused(format!("axes {axes:?} do not fit shape {shape:?}")));
        }
        let target_strides = row_major(extents.get(..axes.len()).unwrap_or_default())?;
        Ok(Self { source, target, source_strides, target_strides, extents })
    }

    /// The number of elements that it writes.
    pub fn element_count(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(*extent)).product()
    }

    /// Returns true if the dimension and the one after it are contiguous in both tensors, so that
    /// they can be folded.
    fn folds(&self, axis: usize) -> bool {
        let Some(inner) = self.extents.get(axis + 1) else { return false };
        let follows = |strides: &[i64; RANK_MAX]| match strides.get(axis..axis + 2) {
            Some([outer, next]) => *outer == next.saturating_mul(i64::from(*inner)),
            _ => false,
        };
        follows(&self.source_strides) && follows(&self.target_strides)
    }

    /// Folds the dimension and the one after it into one.
    fn fold(&mut self, axis: usize) {
        if let Some([outer, inner]) = self.extents.get_mut(axis..axis + 2) {
            *inner *= *outer;
        }
        remove(&mut self.extents, axis, 1);
        remove(&mut self.source_strides, axis, 0);
        remove(&mut self.target_strides, axis, 0);
    }
}

/// Removes an element, moves the later ones forward and puts `last` at the end.
fn remove<T: Copy>(values: &mut [T; RANK_MAX], axis: usize, last: T) {
    if let Some(rest) = values.get_mut(axis..) {
        rest.rotate_left(1);
    }
    values[RANK_MAX - 1] = last;
}

/// Folds neighbouring dimensions that are contiguous in all parts, so that threads compute fewer offsets. Returns the
/// number of dimensions left.
pub fn fold(parts: &mut [BoxPart], rank: usize) -> usize {
    let mut left = rank.min(RANK_MAX);
    for axis in (0..left.saturating_sub(1)).rev() {
        if parts.iter().all(|part| part.folds(axis)) {
            parts.iter_mut().for_each(|part| part.fold(axis));
            left -= 1;
        }
    }
    left
}

/// Bytes of an element of a box: the plan's values are FP32.
pub const ELEMENT_SIZE: usize = 4;

/// The launch that moves the parts, of which the first `rank` dimensions are used ([`fold`] reduces them).
///
/// # Errors
///
/// Unsupported, if a part has too many elements or dimensions, or there are too many parts.
pub fn box_plan(parts: &[BoxPart], rank: usize) -> Result<LaunchPlan, Error> {
    let count_max = parts.iter().map(BoxPart::element_count).max().unwrap_or(0);
    if count_max == 0 {
        return Ok(LaunchPlan::default());
    }
    if u32::try_from(count_max).is_err() || rank > RANK_MAX {
        return Err(refused(format!("no part of {count_max} elements and {rank} dimensions on the GPU")));
    }
    let grid = [blocks(count_max), part_count(parts.len())?];
    let arguments = [
        Buffer(BufferRole::Input),
        Buffer(BufferRole::Output),
        Buffer(BufferRole::Parts),
        U32(u32::try_from(rank).unwrap_or(u32::MAX)),
    ];
    Ok(LaunchPlan::one(KernelLaunch::new(&ENTRIES[1], grid, BOX_SIZE, &arguments)))
}

/// The CPU twin of [`box_plan`]; `None` if an element is out of bounds, which the kernel does not
/// check.
pub fn move_boxes(input: &[u8], output: &mut [u8], parts: &[BoxPart]) -> Option<()> {
    parts.iter().try_for_each(|part| {
        let [source, target] = [i64::try_from(part.source).ok()?, i64::try_from(part.target).ok()?];
        move_box(input, output, &BoxWalk { part, axis: 0, source, target })
    })
}

/// The state of a recursive walk over a box: one axis per level, at most [`RANK_MAX`]. Offsets in bytes.
struct BoxWalk<'a> {
    part: &'a BoxPart,
    axis: usize,
    source: i64,
    target: i64,
}

fn move_box(input: &[u8], output: &mut [u8], walk: &BoxWalk<'_>) -> Option<()> {
    let BoxWalk { part, axis, source, target } = *walk;
    let Some(extent) = part.extents.get(axis) else {
        let [from, to] = [source, target].map(u64::try_from);
        let source = input.get(range(input.len(), from.ok()?, ELEMENT_SIZE)?)?;
        let target = range(output.len(), to.ok()?, ELEMENT_SIZE)?;
        output.get_mut(target)?.copy_from_slice(source);
        return Some(());
    };
    let step = |strides: &[i64; RANK_MAX]| strides.get(axis).map(|stride| stride * ELEMENT_SIZE as i64);
    let (source_step, target_step) = (step(&part.source_strides)?, step(&part.target_strides)?);
    (0..*extent).map(i64::from).try_for_each(|place| {
        let (source, target) = (source + place * source_step, target + place * target_step);
        move_box(input, output, &BoxWalk { part, axis: axis + 1, source, target })
    })
}

fn range(length: usize, start: u64, size: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(start).ok()?;
    let end = start.checked_add(size).filter(|end| *end <= length)?;
    Some(start..end)
}

fn sizes(shape: &[u32]) -> Result<[u32; RANK_MAX], Error> {
    let mut sizes = [1; RANK_MAX];
    let front = sizes.get_mut(..shape.len());
    let front = front.ok_or_else(|| refused(format!("no shape of {} dimensions on the GPU", shape.len())))?;
    front.copy_from_slice(shape);
    Ok(sizes)
}

/// The strides of a dense row-major shape, in elements.
fn row_major(shape: &[u32]) -> Result<[i64; RANK_MAX], Error> {
    let sizes = sizes(shape)?;
    let mut strides = [0; RANK_MAX];
    let mut stride = 1_i64;
    for (slot, size) in strides.iter_mut().zip(sizes).take(shape.len()).rev() {
        *slot = stride;
        let next = stride.checked_mul(i64::from(size));
        stride = next.ok_or_else(|| refused(format!("no shape {shape:?} on the GPU")))?;
    }
    Ok(strides)
}

/// The blocks for a part of this many vectors or elements.
fn blocks(work: u64) -> u32 {
    let wanted = work.div_ceil(u64::from(THREADS) * WORK_PER_THREAD).clamp(1, BLOCKS_MAX);
    u32::try_from(wanted).unwrap_or(u32::MAX)
}

fn part_count(count: usize) -> Result<u32, Error> {
    let fits = u32::try_from(count).ok().filter(|count| *count <= GRID_Y_MAX);
    fits.ok_or_else(|| refused(format!("no batch of {count} parts on the GPU")))
}

const THREADS: u32 = 256;
/// Vectors or elements that a thread moves: several, so that several reads are in flight.
const WORK_PER_THREAD: u64 = 4;
/// The most blocks of one part: a batch has many parts, which fill the GPU together.
const BLOCKS_MAX: u64 = 4096;
const BOX_SIZE: u32 = size_of::<BoxPart>() as u32;

/// Copy of bytes, move of boxes.
pub static ENTRIES: [KernelEntry; 2] = [
    KernelEntry {
        name: "reshape_copy",
        module: KernelModule::Reshape,
        threads: THREADS,
        parameters: &[
            ("input", KernelParameter::Pointer),
            ("output", KernelParameter::Pointer),
            ("parts", KernelParameter::Pointer),
        ],
    },
    KernelEntry {
        name: "reshape_box",
        module: KernelModule::Reshape,
        threads: THREADS,
        parameters: &[
            ("input", KernelParameter::Pointer),
            ("output", KernelParameter::Pointer),
            ("parts", KernelParameter::Pointer),
            ("rank", KernelParameter::U32),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements that show their original index.
    fn numbers(count: usize) -> Vec<u8> {
        (0..count as u32).flat_map(|number| (number + 1).to_le_bytes()).collect()
    }

    fn moved(parts: &[BoxPart], input: &[u8], size: usize) -> Vec<u32> {
        let mut output = vec![0xa5; size * ELEMENT_SIZE];
        move_boxes(input, &mut output, parts).expect("the boxes are inside");
        output.chunks(ELEMENT_SIZE).map(bytemuck::pod_read_unaligned).collect()
    }

    #[test]
    fn cropping_takes_what_is_behind_away_and_its_reverse_leaves_it() {
        let part = BoxPart::cropped(0, &[3, 4], 4, &[2, 2]).unwrap();
        const LEFT: u32 = 0xa5a5_a5a5;
        assert_eq!(moved(&[part], &numbers(12), 6), [LEFT, 1, 2, 5, 6, LEFT]);
        let back = BoxPart { source_strides: part.target_strides, target_strides: part.source_strides, ..part };
        assert_eq!(moved(&[back], &numbers(4), 8), [LEFT, 1, 2, LEFT, LEFT, 3, 4, LEFT]);
        let reversed =
            BoxPart { source: 12, source_strides: [-1; RANK_MAX], ..BoxPart::cropped(0, &[4], 0, &[4]).unwrap() };
        assert_eq!(moved(&[reversed], &numbers(4), 4), [4, 3, 2, 1]);
    }

    #[test]
    fn a_transposition_is_that_of_the_indices() {
        let (shape, axes) = ([2_u32, 3, 4, 5], [2, 0, 3, 1]);
        let part = BoxPart::transposed(0, &shape, 0, &axes).unwrap();
        let got = moved(&[part], &numbers(120), 120);
        let target: Vec<u32> = axes.iter().map(|axis| shape[*axis]).collect();
        for (place, number) in got.iter().enumerate() {
            let mut rest = place as u32;
            let mut index = [0; 4];
            for (axis, size) in target.iter().enumerate().rev() {
                index[axes[axis]] = rest % size;
                rest /= size;
            }
            let from = index.iter().zip(shape).fold(0, |from, (index, size)| from * size + index);
            assert_eq!(*number, from + 1);
        }
        for axes in [&[0, 1][..], &[0, 1, 2, 2], &[0, 1, 2, 4]] {
            assert!(BoxPart::transposed(0, &shape, 0, axes).is_err(), "{axes:?}");
        }
    }

    #[test]
    fn folding_leaves_the_same_moves_in_fewer_dimensions() {
        let check = |part: BoxPart, rank, want| {
            let mut folded = [part];
            assert_eq!(fold(&mut folded, rank), want);
            assert_eq!(folded[0].element_count(), part.element_count());
            assert_eq!(moved(&folded, &numbers(400), 400), moved(&[part], &numbers(400), 400));
        };
        check(BoxPart::cropped(0, &[2, 3, 4], 0, &[2, 3, 4]).unwrap(), 3, 1);
        check(BoxPart::cropped(0, &[5, 3, 4], 0, &[2, 3, 4]).unwrap(), 3, 1);
        check(BoxPart::cropped(0, &[2, 5, 4], 0, &[2, 3, 4]).unwrap(), 3, 2);
        check(BoxPart::cropped(0, &[3, 5, 6], 0, &[2, 4, 5]).unwrap(), 3, 3);
        check(BoxPart::transposed(0, &[4, 5, 6], 0, &[2, 0, 1]).unwrap(), 3, 2);
        check(BoxPart::transposed(0, &[4, 5, 6], 0, &[2, 1, 0]).unwrap(), 3, 3);
        // Dimensions fold only if all parts allow it.
        let mut parts = [&[2, 3, 4], &[2, 2, 4]].map(|given| BoxPart::cropped(0, &[2, 3, 4], 0, given).unwrap());
        assert_eq!(fold(&mut parts, 3), 2);
    }

    #[test]
    fn bytes_are_copied_and_parts_outside_are_found() {
        let part = |source, target, size| CopyPart { source, target, size };
        let mut output = [9; 8];
        let parts = [part(2, 0, 3), part(0, 4, 2), part(0, 7, 0)];
        assert_eq!(copy(&[1, 2, 3, 4, 5], &mut output, &parts), Some(()));
        assert_eq!(output, [3, 4, 5, 9, 1, 2, 9, 9]);
        for outside in [part(3, 0, 3), part(0, 6, 3), part(u64::MAX - 1, 0, 3), part(0, u64::MAX, 1)] {
            assert_eq!(copy(&[0; 5], &mut output, &[outside]), None, "{outside:?}");
        }
        let box_outside = BoxPart::cropped(4, &[2], 0, &[2]).unwrap();
        assert_eq!(move_boxes(&[0; 8], &mut output, &[box_outside]), None);
    }

    #[test]
    fn no_part_is_no_launch_and_too_much_is_refused_by_name() {
        assert_eq!(copy_plan(&[]).unwrap(), LaunchPlan::default());
        assert_eq!(box_plan(&[], 1).unwrap(), LaunchPlan::default());
        let part = CopyPart { source: 0, target: 0, size: 4096 };
        let plan = copy_plan(&[part; 256]).unwrap();
        assert_eq!(plan.launches[0].grid, [1, 256]);
        assert_eq!(copy_plan(&[part; 65_536]).unwrap_err().text(), "no batch of 65536 parts on the GPU");
        let large = BoxPart::cropped(0, &[1 << 16, 1 << 16], 0, &[1 << 16, 1 << 16]).unwrap();
        let refused = box_plan(&[large], 2).unwrap_err();
        assert_eq!(refused.text(), "no part of 4294967296 elements and 2 dimensions on the GPU");
        assert!(BoxPart::cropped(0, &[1; 7], 0, &[1; 7]).is_err());
    }
}
