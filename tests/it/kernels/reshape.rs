//! Cases of the reshape kernels: gather and scatter, padding, transposition, casts.

use deuteron::backend::kernel::BufferRole;
use deuteron::backend::kernel::reshape::{
    BoxPart, CopyPart, ElementFormat, ZEROS, box_plan, copy, copy_plan, fold, move_boxes,
};
use deuteron::tensor::Datatype;

use super::case::{After, Case, Float, POISON, Random};

/// Parts that lie behind one another in both buffers, each on a multiple of `alignment` and a little further.
fn copy_case(label: &str, sizes: &[usize], alignment: usize, shift: usize, random: &mut Random) -> Case {
    let (mut parts, mut source, mut target) = (Vec::new(), shift, 0);
    for (index, size) in sizes.iter().enumerate() {
        let is_brought = index % 7 != 3;
        let from = if is_brought { source as u64 } else { ZEROS };
        parts.push(CopyPart { source: from, target: target as u64, size: *size as u64 });
        source += if is_brought { size.next_multiple_of(alignment) } else { 0 };
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

/// How a part of a batch lies in both buffers.
#[derive(Clone, Copy, Debug)]
enum Way {
    Padded,
    Cropped,
    Transposed(&'static [usize]),
}

/// Parts of these shapes; of `padded` and `cropped` ones beside the same larger shape.
fn box_case(way: Way, shapes: &[&[u32]], large: &[u32], types: [Datatype; 2], folds: bool) -> Case {
    let mut random = Random(shapes.len() as u64 + large.len() as u64);
    let formats = ElementFormat::pair(types[0], types[1]).expect("the datatypes go together");
    let count = |shape: &[u32]| shape.iter().map(|size| *size as usize).product::<usize>();
    let (mut parts, mut source, mut target) = (Vec::new(), 0, 0);
    for shape in shapes {
        let (from, to) = (source as u64, target as u64);
        let (part, read, written) = match way {
            Way::Padded => (BoxPart::padded(from, shape, to, large), count(shape), count(large)),
            Way::Cropped => (BoxPart::cropped(from, large, to, shape), count(large), count(shape)),
            Way::Transposed(axes) => (BoxPart::transposed(from, shape, to, axes), count(shape), count(shape)),
        };
        parts.push(part.expect("the shapes go together"));
        source += read * formats[0].size();
        // Something between parts stays as it was.
        target += (written + 1) * formats[1].size();
    }
    let rank = shapes[0].len();
    let rank = if folds { fold(&mut parts, rank) } else { rank };
    let input = match Float::ALL.into_iter().find(|float| float.datatype() == types[0]) {
        Some(float) if types[0] != types[1] => float.bytes(&random.values(source / float.size())),
        _ => random.bytes(source),
    };
    let mut output = vec![POISON; target];
    move_boxes(&input, &mut output, &parts, formats).expect("the boxes are inside");
    // What is no number may have other bits.
    let after = match Float::ALL.into_iter().find(|float| float.datatype() == types[1]) {
        Some(float) if types[0] != types[1] => After::Floats(float, float.values(&output), 0.0),
        _ => After::Bytes(output),
    };
    let label = format!("{way:?} boxes {shapes:?} beside {large:?}, {types:?}, folded to {rank}");
    Case::new(label, box_plan(&parts, rank, formats).expect("the parts are planned"))
        .reads(BufferRole::Input, input)
        .reads(BufferRole::Parts, bytemuck::cast_slice(&parts).to_vec())
        .writes(BufferRole::Output, after)
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
    let same = [Datatype::Uint8, Datatype::Fp16, Datatype::Fp32, Datatype::Int64].map(|datatype| [datatype; 2]);
    let floats = Float::ALL.map(Float::datatype);
    let casts = floats.into_iter().flat_map(|from| floats.map(|to| [from, to])).filter(|[from, to]| from != to);
    for types in same.into_iter().chain(casts) {
        for folds in [false, true] {
            let shapes: &[&[u32]] = &[&[2, 3, 5], &[2, 1, 8], &[2, 4, 8], &[2, 0, 3]];
            cases.push(box_case(Way::Padded, shapes, &[2, 4, 8], types, folds));
            cases.push(box_case(Way::Cropped, shapes, &[2, 4, 8], types, folds));
            cases.push(box_case(Way::Padded, &[&[7], &[300]], &[1300], types, folds));
            cases.push(box_case(Way::Cropped, &[&[1, 2, 3, 4, 5, 6]], &[1, 2, 4, 4, 5, 6], types, folds));
            cases.push(box_case(Way::Transposed(&[1, 0]), &[&[37, 65], &[37, 1]], &[], types, folds));
            cases.push(box_case(Way::Transposed(&[0, 3, 1, 2]), &[&[2, 5, 7, 3]], &[], types, folds));
            cases.push(box_case(Way::Transposed(&[0, 1, 2]), &[&[3, 5, 7]], &[], types, folds));
        }
    }
    cases
}
