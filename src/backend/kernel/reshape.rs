//! Moves the rows of many requests into one batch and back: tables of the byte ranges or boxes of elements to move, and
//! the launches and CPU twins that move them. One launch moves a tensor of a whole batch.
//!
//! The kernels read the tables ([`CopyPart`], [`BoxPart`]) as they are, so they can be made in pinned memory and
//! uploaded. Offsets count bytes from [`BufferRole::Input`] and [`BufferRole::Output`]; for parts in separate
//! allocations, the buffer is the null address and an offset is an address.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use super::KernelArgument::{Buffer, U32};
use super::{BufferRole, GRID_Y_MAX, KernelEntry, KernelLaunch, KernelModule, KernelParameter, LaunchPlan, refused};
use crate::error::Error;
use crate::tensor::Datatype;

/// A range of bytes to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CopyPart {
    /// Bytes into the input, or [`ZEROS`].
    pub source: u64,
    /// Bytes into the output. Fastest if this and the source are multiples of 16.
    pub target: u64,
    /// Bytes to copy; may be 0.
    pub size: u64,
}

/// The source of a part without data, such as an input that a request left out: zeros are written.
pub const ZEROS: u64 = u64::MAX;

/// The launch that copies the parts.
///
/// # Errors
///
/// Unsupported, where there are more parts than a grid has blocks along y.
pub fn copy_plan(parts: &[CopyPart]) -> Result<LaunchPlan, Error> {
    let size_max = parts.iter().map(|part| part.size).max().unwrap_or(0);
    if size_max == 0 {
        return Ok(LaunchPlan::default());
    }
    let grid = [blocks(size_max.div_ceil(16)), part_count(parts.len())?];
    let arguments = [Buffer(BufferRole::Input), Buffer(BufferRole::Output), Buffer(BufferRole::Parts)];
    Ok(LaunchPlan::one(KernelLaunch::new(&ENTRIES[0], grid, 0, &arguments)))
}

/// The CPU twin of [`copy_plan`]; `None` where a part is out of bounds, which the kernel does not check.
pub fn copy(input: &[u8], output: &mut [u8], parts: &[CopyPart]) -> Option<()> {
    for part in parts {
        let size = usize::try_from(part.size).ok()?;
        let target = range(output.len(), part.target, size).and_then(|range| output.get_mut(range))?;
        if part.source == ZEROS {
            target.fill(0);
        } else {
            target.copy_from_slice(range(input.len(), part.source, size).and_then(|range| input.get(range))?);
        }
    }
    Some(())
}

/// The most dimensions of a part, the batch axis included.
pub const RANK_MAX: usize = 6;

/// A box of elements to move: in each dimension `extents` elements are written, of which the first `given` are read
/// from the source and the others are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BoxPart {
    /// Bytes into the input, on a multiple of an element's size.
    pub source: u64,
    /// Bytes into the output, likewise.
    pub target: u64,
    /// The distance in elements to the next of each dimension, in the input.
    pub source_strides: [i64; RANK_MAX],
    /// The distance in elements to the next of each dimension, in the output.
    pub target_strides: [i64; RANK_MAX],
    /// Elements written in each dimension.
    pub extents: [u32; RANK_MAX],
    /// Elements read in each dimension.
    pub given: [u32; RANK_MAX],
}

impl BoxPart {
    /// Copies a tensor of shape `given` into the front of one of shape `padded`; the rest becomes zeros.
    ///
    /// # Errors
    ///
    /// Unsupported, where a shape has too many dimensions or elements.
    pub fn padded(source: u64, given: &[u32], target: u64, padded: &[u32]) -> Result<Self, Error> {
        let (source_strides, target_strides) = (row_major(given)?, row_major(padded)?);
        Ok(Self { source, target, source_strides, target_strides, extents: sizes(padded)?, given: sizes(given)? })
    }

    /// Copies the front of shape `given` out of a tensor of shape `padded`: the inverse of [`Self::padded`].
    ///
    /// # Errors
    ///
    /// As [`Self::padded`].
    pub fn cropped(source: u64, padded: &[u32], target: u64, given: &[u32]) -> Result<Self, Error> {
        let (source_strides, target_strides) = (row_major(padded)?, row_major(given)?);
        Ok(Self { source, target, source_strides, target_strides, extents: sizes(given)?, given: sizes(given)? })
    }

    /// Transposes: dimension `i` of the result is dimension `axes[i]` of the source, as in ONNX's Transpose.
    ///
    /// # Errors
    ///
    /// As [`Self::padded`], or where `axes` is not a permutation.
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
        Ok(Self { source, target, source_strides, target_strides, extents, given: extents })
    }

    /// The number of elements that it writes.
    pub fn element_count(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(*extent)).product()
    }

    /// Whether the dimension and the one after it are contiguous in both tensors, and the latter has no padding, so
    /// that they can be folded.
    fn folds(&self, axis: usize) -> bool {
        let [Some(inner), Some(whole)] = [self.extents.get(axis + 1), self.given.get(axis + 1)] else { return false };
        let follows = |strides: &[i64; RANK_MAX]| match strides.get(axis..axis + 2) {
            Some([outer, next]) => *outer == next.saturating_mul(i64::from(*inner)),
            _ => false,
        };
        inner == whole && follows(&self.source_strides) && follows(&self.target_strides)
    }

    /// Folds the dimension and the one after it into one.
    fn fold(&mut self, axis: usize) {
        for sizes in [&mut self.extents, &mut self.given] {
            if let Some([outer, inner]) = sizes.get_mut(axis..axis + 2) {
                *inner *= *outer;
            }
            remove(sizes, axis, 1);
        }
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

/// The float format of an element that is cast, or the size of one that is only moved. `ElementFormat` in
/// `kernels/device.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ElementFormat {
    /// One byte, of any datatype.
    Bits8 = 0,
    /// Two bytes, of any datatype.
    Bits16 = 1,
    /// Four bytes, of any datatype.
    Bits32 = 2,
    /// Eight bytes, of any datatype.
    Bits64 = 3,
    /// IEEE half.
    Fp16 = 4,
    /// Brain float.
    Bf16 = 5,
    /// IEEE single.
    Fp32 = 6,
}

impl ElementFormat {
    /// The formats for moving elements from one datatype to another: FP16, BF16 and FP32 are cast to each other,
    /// elements of the same datatype are moved.
    ///
    /// # Errors
    ///
    /// Unsupported, where another cast is asked for, or elements have no fixed size.
    pub fn pair(source: Datatype, target: Datatype) -> Result<[Self; 2], Error> {
        if source == target {
            let bits = match source.size() {
                Some(1) => Self::Bits8,
                Some(2) => Self::Bits16,
                Some(4) => Self::Bits32,
                Some(8) => Self::Bits64,
                _ => return Err(refused(format!("no {} on the GPU", source.name()))),
            };
            return Ok([bits, bits]);
        }
        match (Self::float(source), Self::float(target)) {
            (Some(source), Some(target)) => Ok([source, target]),
            _ => Err(refused(format!("no cast from {} to {} on the GPU", source.name(), target.name()))),
        }
    }

    /// The format of a float that kernels compute with.
    pub const fn float(datatype: Datatype) -> Option<Self> {
        match datatype {
            Datatype::Fp16 => Some(Self::Fp16),
            Datatype::Bf16 => Some(Self::Bf16),
            Datatype::Fp32 => Some(Self::Fp32),
            _ => None,
        }
    }

    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::Bits8 => 1,
            Self::Bits16 | Self::Fp16 | Self::Bf16 => 2,
            Self::Bits32 | Self::Fp32 => 4,
            Self::Bits64 => 8,
        }
    }

    fn read(self, bytes: &[u8]) -> Option<f32> {
        Some(match self {
            Self::Fp16 => f16::from_le_bytes(*bytes.first_chunk()?).to_f32(),
            Self::Bf16 => bf16::from_le_bytes(*bytes.first_chunk()?).to_f32(),
            _ => f32::from_le_bytes(*bytes.first_chunk()?),
        })
    }

    fn write(self, value: f32, bytes: &mut [u8]) -> Option<()> {
        match self {
            Self::Fp16 => *bytes.first_chunk_mut()? = f16::from_f32(value).to_le_bytes(),
            Self::Bf16 => *bytes.first_chunk_mut()? = bf16::from_f32(value).to_le_bytes(),
            _ => *bytes.first_chunk_mut()? = value.to_le_bytes(),
        }
        Some(())
    }
}

/// The launch that moves the parts, of which the first `rank` dimensions are used ([`fold`] reduces them).
///
/// # Errors
///
/// Unsupported, where a part has too many elements or dimensions, or there are too many parts.
pub fn box_plan(parts: &[BoxPart], rank: usize, [source, target]: [ElementFormat; 2]) -> Result<LaunchPlan, Error> {
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
        U32(source as u32),
        U32(target as u32),
    ];
    Ok(LaunchPlan::one(KernelLaunch::new(&ENTRIES[1], grid, BOX_SIZE, &arguments)))
}

/// The CPU twin of [`box_plan`]; `None` where an element is out of bounds, which the kernel does not check.
pub fn move_boxes(input: &[u8], output: &mut [u8], parts: &[BoxPart], formats: [ElementFormat; 2]) -> Option<()> {
    parts.iter().try_for_each(|part| {
        let [source, target] = [i64::try_from(part.source).ok()?, i64::try_from(part.target).ok()?];
        move_box(input, output, &BoxWalk { part, formats, axis: 0, source, target, is_given: true })
    })
}

/// The state of a recursive walk over a box: one axis per level, at most [`RANK_MAX`]. Offsets in bytes.
struct BoxWalk<'a> {
    part: &'a BoxPart,
    formats: [ElementFormat; 2],
    axis: usize,
    source: i64,
    target: i64,
    is_given: bool,
}

fn move_box(input: &[u8], output: &mut [u8], walk: &BoxWalk<'_>) -> Option<()> {
    let part = walk.part;
    let [from, to] = walk.formats;
    let sizes = [from.size(), to.size()].map(|size| size as i64);
    let Some((extent, given)) = part.extents.get(walk.axis).zip(part.given.get(walk.axis)) else {
        let target = range(output.len(), walk.target.try_into().ok()?, to.size())?;
        let target = output.get_mut(target)?;
        if !walk.is_given {
            target.fill(0);
            return Some(());
        }
        let source = input.get(range(input.len(), walk.source.try_into().ok()?, from.size())?)?;
        if from == to {
            target.copy_from_slice(source);
            return Some(());
        }
        return to.write(from.read(source)?, target);
    };
    let [source_step, target_step] =
        [*part.source_strides.get(walk.axis)? * sizes[0], *part.target_strides.get(walk.axis)? * sizes[1]];
    // The innermost dimension is copied at once where it is contiguous in both and needs no cast.
    let is_last = part.extents.get(walk.axis + 1..)?.iter().all(|extent| *extent == 1)
        && part.given.get(walk.axis + 1..)?.iter().all(|given| *given == 1);
    if is_last && walk.is_given && given >= extent && from == to && [source_step, target_step] == sizes {
        let size = *extent as usize * from.size();
        let source = input.get(range(input.len(), walk.source.try_into().ok()?, size)?)?;
        let target = range(output.len(), walk.target.try_into().ok()?, size)?;
        output.get_mut(target)?.copy_from_slice(source);
        return Some(());
    }
    (0..*extent).try_for_each(|place| {
        let next = BoxWalk {
            part,
            formats: walk.formats,
            axis: walk.axis + 1,
            source: walk.source + i64::from(place) * source_step,
            target: walk.target + i64::from(place) * target_step,
            is_given: walk.is_given && place < *given,
        };
        move_box(input, output, &next)
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
            ("source_format", KernelParameter::U32),
            ("target_format", KernelParameter::U32),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements that tell where they were.
    fn numbers(count: usize) -> Vec<u8> {
        (0..count as u16).flat_map(|number| (number + 1).to_le_bytes()).collect()
    }

    fn moved(parts: &[BoxPart], input: &[u8], size: usize) -> Vec<u16> {
        let mut output = vec![0xa5; size * 2];
        move_boxes(input, &mut output, parts, [ElementFormat::Bits16; 2]).expect("the boxes are inside");
        output.chunks(2).map(|chunk| u16::from_le_bytes([chunk[0], chunk[1]])).collect()
    }

    #[test]
    fn padding_puts_zeros_behind_and_cropping_takes_them_away() {
        let part = BoxPart::padded(0, &[2, 2], 0, &[3, 4]).unwrap();
        let padded = moved(&[part], &numbers(4), 12);
        assert_eq!(padded, [1, 2, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0]);
        let back = BoxPart::cropped(0, &[3, 4], 2, &[2, 2]).unwrap();
        assert_eq!(moved(&[back], bytemuck::cast_slice(&padded), 6), [0xa5a5, 1, 2, 3, 4, 0xa5a5]);
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
            assert_eq!(u32::from(*number), from + 1);
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
        check(BoxPart::padded(0, &[2, 3, 4], 0, &[2, 3, 4]).unwrap(), 3, 1);
        check(BoxPart::padded(0, &[2, 3, 4], 0, &[5, 3, 4]).unwrap(), 3, 1);
        check(BoxPart::padded(0, &[2, 3, 4], 0, &[2, 5, 4]).unwrap(), 3, 2);
        check(BoxPart::padded(0, &[2, 3, 4], 0, &[2, 3, 6]).unwrap(), 3, 2);
        check(BoxPart::cropped(0, &[3, 5, 6], 0, &[2, 4, 5]).unwrap(), 3, 3);
        check(BoxPart::transposed(0, &[4, 5, 6], 0, &[2, 0, 1]).unwrap(), 3, 2);
        check(BoxPart::transposed(0, &[4, 5, 6], 0, &[2, 1, 0]).unwrap(), 3, 3);
        // What one part cannot, none does.
        let mut parts = [&[2, 3, 4], &[2, 2, 4]].map(|given| BoxPart::padded(0, given, 0, &[2, 3, 4]).unwrap());
        assert_eq!(fold(&mut parts, 3), 2);
    }

    #[test]
    fn bytes_are_copied_or_cleared_and_parts_outside_are_found() {
        let part = |source, target, size| CopyPart { source, target, size };
        let mut output = [9; 8];
        let parts = [part(2, 0, 3), part(ZEROS, 4, 2), part(0, 7, 0)];
        assert_eq!(copy(&[1, 2, 3, 4, 5], &mut output, &parts), Some(()));
        assert_eq!(output, [3, 4, 5, 9, 0, 0, 9, 9]);
        for outside in [part(3, 0, 3), part(0, 6, 3), part(u64::MAX - 1, 0, 3), part(0, u64::MAX, 1)] {
            assert_eq!(copy(&[0; 5], &mut output, &[outside]), None, "{outside:?}");
        }
        let box_outside = BoxPart::padded(4, &[3], 0, &[3]).unwrap();
        assert_eq!(move_boxes(&[0; 8], &mut output, &[box_outside], [ElementFormat::Bits16; 2]), None);
    }

    #[test]
    fn floats_are_cast_to_the_nearest_and_others_are_only_moved() {
        let part = BoxPart::padded(0, &[5], 0, &[5]).unwrap();
        let values = [1.0 + 1.0 / 2048.0, 65520.0, -0.0, f32::NAN, 1e-8];
        let mut output = vec![0; 10];
        let formats = ElementFormat::pair(Datatype::Fp32, Datatype::Fp16).unwrap();
        move_boxes(bytemuck::cast_slice(&values), &mut output, &[part], formats).expect("the box is inside");
        let got: Vec<u16> = output.chunks(2).map(|chunk| u16::from_le_bytes([chunk[0], chunk[1]])).collect();
        assert_eq!(got, [0x3c00, 0x7c00, 0x8000, 0x7e00, 0]);
        let refused = |source, target| ElementFormat::pair(source, target).unwrap_err().text().to_owned();
        assert_eq!(refused(Datatype::Fp64, Datatype::Fp32), "no cast from FP64 to FP32 on the GPU");
        assert_eq!(refused(Datatype::Bytes, Datatype::Bytes), "no BYTES on the GPU");
    }

    #[test]
    fn no_part_is_no_launch_and_too_much_is_refused_by_name() {
        assert_eq!(copy_plan(&[]).unwrap(), LaunchPlan::default());
        assert_eq!(box_plan(&[], 1, [ElementFormat::Bits8; 2]).unwrap(), LaunchPlan::default());
        let part = CopyPart { source: 0, target: 0, size: 4096 };
        let plan = copy_plan(&[part; 256]).unwrap();
        assert_eq!(plan.launches[0].grid, [1, 256]);
        assert_eq!(copy_plan(&[part; 65_536]).unwrap_err().text(), "no batch of 65536 parts on the GPU");
        let large = BoxPart::padded(0, &[1 << 16, 1 << 16], 0, &[1 << 16, 1 << 16]).unwrap();
        let refused = box_plan(&[large], 2, [ElementFormat::Bits8; 2]).unwrap_err();
        assert_eq!(refused.text(), "no part of 4294967296 elements and 2 dimensions on the GPU");
        assert!(BoxPart::padded(0, &[1; 7], 0, &[1; 7]).is_err());
    }
}
