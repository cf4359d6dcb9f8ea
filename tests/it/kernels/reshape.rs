//! Cases of the reshape kernels: gather and scatter, parts of tensors, transposition.

use deuteron::backend::kernel::BufferRole;
use deuteron::backend::kernel::reshape::{
    BoxPart, CopyPart, ELEMENT_SIZE, box_plan, copy, copy_plan, fold, move_boxes,
};

use super::case::{After, Case, POISON, Random};

/// Parts one behind the other in both buffers, each at a multiple of `alignment` plus a little.
fn copy_case(label: &str, sizes: &[usize], alignment: usize, shift: usize, random: &mut Random) -> Case {
    let (mut parts, mut source, mut target) = (Vec::new(), shift, 0);
    for size in sizes {
        parts.push(CopyPart { source: source as u64, target: target as u64, size: *size as u64 });
        source += size.next_multiple_of(alignment);
        target += (size + 1).next_multiple_of(alignment);
    }
    let input = random.bytes(source);
    let mut output = vec![POISON; target];
    copy(&input, &mut output, &parts).expect("the parts are inside");
    Case::new(format!("copy of {label}"), copy_plan(&parts).expect("the parts are planned"))
        .reads(BufferRole::Input, input)
        .reads(BufferRole::Parts, bytemuck::cast_slice(&parts).to_vec())
        .writes(BufferRole::Output, After::Bytes(output))
}

/// Layout of a part of a batch in both buffers.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The front of a larger shape.
    Cropped,
    /// Into the front of a larger shape.
    Joined,
    /// From its end to its front.
    Reversed,
    Transposed(&'static [usize]),
}

/// Parts of these shapes, cropped and joined ones beside the same larger shape.
fn box_case(way: Way, shapes: &[&[u32]], large: &[u32], folds: bool) -> Case {
    let mut random = Random(shapes.len() as u64 + large.len() as u64);
    let count = |shape: &[u32]| shape.iter().map(|size| *size as usize).product::<usize>();
    let (mut parts, mut source, mut target) = (Vec::new(), 0, 0);
    for shape in shapes {
        let (from, to) = (source as u64, target as u64);
        let cropped = |whole: &[u32]| BoxPart::cropped(from, whole, to, shape).expect("the shapes go together");
        let (part, read, written) = match way {
            Way::Cropped => (cropped(large), count(large), count(shape)),
            Way::Joined => {
                let part = cropped(large);
                let (source_strides, target_strides) = (part.target_strides, part.source_strides);
                (BoxPart { source_strides, target_strides, ..part }, count(shape), count(large))
            }
            Way::Reversed => {
                let part = cropped(shape);
                let last = from + (count(shape).max(1) - 1) as u64 * ELEMENT_SIZE as u64;
                let part = BoxPart { source: last, source_strides: part.source_strides.map(|stride| -stride), ..part };
                (part, count(shape), count(shape))
            }
            Way::Transposed(axes) => {
                let part = BoxPart::transposed(from, shape, to, axes).expect("the axes fit");
                (part, count(shape), count(shape))
            }
        };
        parts.push(part);
        source += read * ELEMENT_SIZE;
        // The element between two parts must stay unchanged.
        target += (written + 1) * ELEMENT_SIZE;
    }
    let rank = shapes[0].len();
    let rank = if folds { fold(&mut parts, rank) } else { rank };
    let input = random.bytes(source);
    let mut output = vec![POISON; target];
    move_boxes(&input, &mut output, &parts).expect("the boxes are inside");
    let label = format!("{way:?} boxes {shapes:?} beside {large:?}, folded to {rank}");
    Case::new(label, box_plan(&parts, rank).expect("the parts are planned"))
        .reads(BufferRole::Input, input)
        .reads(BufferRole::Parts, bytemuck::cast_slice(&parts).to_vec())
        .writes(BufferRole::Output, After::Bytes(output))
}

/// The whole grid.
pub fn cases() -> Vec<Case> {
    let mut random = Random(21);
    let mixed: Vec<usize> = (0..40).map(|_| random.below(3000)).collect();
    let mut cases = vec![
        copy_case("256 requests of 4 KiB", &[4096; 256], 16, 0, &mut random),
        copy_case("one large request", &[300_001], 16, 0, &mut random),
        copy_case("rows of three FP32", &[12; 33], 4, 4, &mut random),
        copy_case("odd bytes", &mixed, 1, 1, &mut random),
        copy_case("odd sizes on 16 bytes", &mixed, 16, 0, &mut random),
        copy_case("some of nothing", &[0, 5, 0, 7, 0], 1, 0, &mut random),
    ];
    for folds in [false, true] {
        let shapes: &[&[u32]] = &[&[2, 3, 5], &[2, 1, 8], &[2, 4, 8], &[2, 0, 3]];
        for way in [Way::Cropped, Way::Joined, Way::Reversed] {
            cases.push(box_case(way, shapes, &[2, 4, 8], folds));
            cases.push(box_case(way, &[&[7], &[300]], &[1300], folds));
            cases.push(box_case(way, &[&[1, 2, 3, 4, 5, 6]], &[1, 2, 4, 4, 5, 6], folds));
        }
        cases.push(box_case(Way::Transposed(&[1, 0]), &[&[37, 65], &[37, 1]], &[], folds));
        cases.push(box_case(Way::Transposed(&[0, 3, 1, 2]), &[&[2, 5, 7, 3]], &[], folds));
        cases.push(box_case(Way::Transposed(&[0, 1, 2]), &[&[3, 5, 7]], &[], folds));
        cases.push(box_case(Way::Transposed(&[5, 3, 1, 0, 2, 4]), &[&[2, 3, 1, 4, 2, 5]], &[], folds));
    }
    cases
}
