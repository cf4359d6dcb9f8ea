//! The memory of the fake device, and its kernels: decoded from their arguments, and run by the CPU
//! twins. A pointer out of bounds gives `None`.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a fixture of tests, which fail by panicking"
)]

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::gpu::driver::{DevicePointer, KernelValue, MatrixProduct};
use crate::kernel::pointwise::{self, Activation, Binary, PointwiseOperation, Strides};
use crate::kernel::reshape::{self, BoxPart, CopyPart};

/// Memory by its address, which is also its address on the host: a library that computes there in
/// place of a device may use it.
#[derive(Default)]
pub struct HostMemory {
    buffers: BTreeMap<DevicePointer, Vec<u8>>,
    /// Freed buffers, kept so that no address is reused.
    gone: Vec<Vec<u8>>,
}

/// The alignment of device memory.
const ALIGNMENT: usize = 256;

impl HostMemory {
    /// Allocates poisoned memory, never at the address of earlier memory.
    pub fn alloc(&mut self, size: usize) -> DevicePointer {
        let bytes = vec![0xa5; size + ALIGNMENT];
        let pointer = (bytes.as_ptr() as u64).next_multiple_of(ALIGNMENT as u64);
        self.buffers.insert(pointer, bytes);
        pointer
    }

    /// Frees memory; returns false if no buffer is at the address.
    pub fn free(&mut self, pointer: DevicePointer) -> bool {
        let gone = self.buffers.remove(&pointer);
        let was_there = gone.is_some();
        self.gone.extend(gone);
        was_there
    }

    /// Bytes that are allocated.
    pub fn size(&self) -> usize {
        self.buffers.values().map(|bytes| bytes.len() - ALIGNMENT).sum()
    }

    /// Returns bytes at an address.
    pub fn read(&self, pointer: DevicePointer, size: usize) -> Option<&[u8]> {
        let (begin, bytes) = self.buffers.range(..=pointer).next_back()?;
        let at = usize::try_from(pointer - begin).ok()?;
        let before = usize::try_from(begin - bytes.as_ptr() as u64).ok()?;
        let end = at.checked_add(size).filter(|end| *end <= bytes.len() - ALIGNMENT)?;
        bytes.get(before + at..before + end)
    }

    /// Returns all bytes from an address to the end of its buffer.
    fn rest(&self, pointer: DevicePointer) -> Option<&[u8]> {
        let (begin, bytes) = self.buffers.range(..=pointer).next_back()?;
        let size = (bytes.len() - ALIGNMENT).checked_sub(usize::try_from(pointer - begin).ok()?)?;
        self.read(pointer, size)
    }

    /// Writes bytes at an address.
    pub fn write(&mut self, pointer: DevicePointer, contents: &[u8]) -> Option<()> {
        let (begin, bytes) = self.buffers.range_mut(..=pointer).next_back()?;
        let at = usize::try_from(pointer - begin).ok()?;
        let before = usize::try_from(begin - bytes.as_ptr() as u64).ok()?;
        let end = at.checked_add(contents.len()).filter(|end| *end <= bytes.len() - ALIGNMENT)?;
        bytes.get_mut(before + at..before + end)?.copy_from_slice(contents);
        Some(())
    }

    fn floats(&self, pointer: DevicePointer, count: usize) -> Option<Vec<f32>> {
        let bytes = self.read(pointer, count.checked_mul(4)?)?;
        Some(bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
    }

    /// Returns the values that an operand spans, whose strides may repeat or skip some.
    fn operand(&self, pointer: DevicePointer, rows: u32, columns: u32, strides: Strides) -> Option<Vec<f32>> {
        let last = |count: u32, stride: u32| (count.max(1) - 1) as usize * stride as usize;
        self.floats(pointer, last(rows, strides.row) + last(columns, strides.column) + 1)
    }

    fn write_floats(&mut self, pointer: DevicePointer, values: &[f32]) -> Option<()> {
        self.write(pointer, bytemuck::cast_slice(values))
    }
}

/// Runs a kernel.
pub fn launch(memory: &mut HostMemory, name: &str, grid: [u32; 2], values: &[KernelValue]) -> Option<()> {
    let pointer = |index: usize| match values[index] {
        KernelValue::Pointer(pointer) => pointer,
        other => panic!("argument {index} of {name} is {other:?}"),
    };
    let number = |index: usize| match values[index] {
        KernelValue::U32(number) => number,
        KernelValue::U64(number) => u32::try_from(number).unwrap(),
        KernelValue::Pointer(_) => panic!("argument {index} of {name} is a pointer"),
    };
    let fp32 = |index: usize| assert_eq!(number(index), FP32, "the fake computes in FP32");
    match name {
        "pointwise_activation" => {
            fp32(4);
            let mut found = memory.floats(pointer(0), number(2) as usize)?;
            pointwise::activate(&mut found, activation(number(3)));
            memory.write_floats(pointer(1), &found)
        }
        "pointwise_binary" => {
            fp32(11);
            let (rows, columns) = (number(3), number(4));
            let left = Strides { row: number(5), column: number(6) };
            let right = Strides { row: number(7), column: number(8) };
            let operation = *PointwiseOperation::ALL.iter().find(|operation| **operation as u32 == number(9))?;
            let binary = Binary { rows, columns, left, right, operation, activation: activation(number(10)) };
            let one = memory.operand(pointer(0), rows, columns, left)?;
            let other = memory.operand(pointer(1), rows, columns, right)?;
            let mut output = vec![0.0; rows as usize * columns as usize];
            binary.combine(&one, &other, &mut output)?;
            memory.write_floats(pointer(2), &output)
        }
        "softmax_warp" | "softmax_block" => {
            fp32(4);
            let (rows, columns) = (number(2) as usize, number(3) as usize);
            let mut found = memory.floats(pointer(0), rows * columns)?;
            pointwise::softmax(&mut found, columns);
            memory.write_floats(pointer(1), &found)
        }
        "topk_warp_32" => top(memory, [pointer(0), pointer(1), pointer(2)], [3, 4, 5, 6, 7].map(number)),
        "topk_block_32" => {
            assert_eq!(number(9), 1, "the fake does not split rows");
            top(memory, [pointer(0), pointer(1), pointer(2)], [4, 5, 6, 7, 8].map(number))
        }
        "reshape_copy" => {
            let parts = memory.read(pointer(2), grid[1] as usize * size_of::<CopyPart>())?;
            let parts: Vec<CopyPart> = parts.chunks(size_of::<CopyPart>()).map(bytemuck::pod_read_unaligned).collect();
            parts.iter().try_for_each(|part| {
                let bytes = memory.read(pointer(0) + part.source, part.size as usize)?.to_vec();
                memory.write(pointer(1) + part.target, &bytes)
            })
        }
        "reshape_box" => {
            let parts = memory.read(pointer(2), grid[1] as usize * size_of::<BoxPart>())?;
            let parts: Vec<BoxPart> = parts.chunks(size_of::<BoxPart>()).map(bytemuck::pod_read_unaligned).collect();
            let input = memory.rest(pointer(0))?.to_vec();
            let mut output = memory.rest(pointer(1))?.to_vec();
            reshape::move_boxes(&input, &mut output, &parts)?;
            memory.write(pointer(1), &output)
        }
        _ => panic!("the fake has no kernel '{name}'"),
    }
}

/// The number of FP32 among a kernel's formats.
const FP32: u32 = pointwise::FloatFormat::Fp32 as u32;

fn activation(number: u32) -> Activation {
    *Activation::ALL.iter().find(|activation| **activation as u32 == number).expect("a kernel's activation")
}

/// Finds the best of each row of FP32 by sorting it.
fn top(
    memory: &mut HostMemory,
    [input, values, indices]: [DevicePointer; 3],
    [rows, classes, count, order, index_size]: [u32; 5],
) -> Option<()> {
    assert_eq!((order, index_size), (2, 4), "FP32 and indices of 4 bytes");
    let (rows, classes, count) = (rows as usize, classes as usize, count as usize);
    let found = memory.floats(input, rows * classes)?;
    let (mut best, mut places) = (Vec::new(), Vec::new());
    for row in found.chunks(classes) {
        let mut sorted: Vec<(f32, u32)> = row.iter().copied().zip(0..).collect();
        // Stable: equal values keep the order of their indices, and NaN comes last.
        sorted.sort_by(|left, right| match (left.0.is_nan(), right.0.is_nan()) {
            (false, false) => right.0.partial_cmp(&left.0).unwrap_or(Ordering::Equal),
            (left, right) => left.cmp(&right),
        });
        best.extend(sorted.iter().take(count).map(|(value, _)| *value));
        places.extend(sorted.iter().take(count).map(|(_, index)| *index));
    }
    memory.write_floats(values, &best)?;
    memory.write(indices, bytemuck::cast_slice(&places))
}

/// `output = input x weight (+ bias)`, and ReLU.
pub fn multiply(memory: &mut HostMemory, matmul: &MatrixProduct) -> Option<()> {
    let MatrixProduct { rows, inner, columns, is_transposed, has_relu, .. } = *matmul;
    let input = memory.floats(matmul.input, rows * inner)?;
    let weight = memory.floats(matmul.weight, inner * columns)?;
    let bias = match matmul.bias {
        Some(bias) => memory.floats(bias, columns)?,
        None => vec![0.0; columns],
    };
    let mut output = vec![0.0; rows * columns];
    for row in 0..rows {
        for column in 0..columns {
            let weight_at = |index| if is_transposed { column * inner + index } else { index * columns + column };
            let sum: f64 = (0..inner)
                .map(|index| f64::from(input[row * inner + index]) * f64::from(weight[weight_at(index)]))
                .sum();
            let value = (sum + f64::from(bias[column])) as f32;
            output[row * columns + column] = if has_relu { value.max(0.0) } else { value };
        }
    }
    memory.write_floats(matmul.output, &output)
}
