//! A JPEG encoder for test files (ITU-T T.81): baseline and progressive, with the tables of its annex K. Small and slow.

use std::f64::consts::PI;

use crate::image::jpeg::ZIGZAG;
use crate::image::sample::SamplePixels;

/// The kind of a file.
#[derive(Clone, Copy, Debug)]
pub struct JpegKind {
    /// 1 to 100, as libjpeg counts.
    pub quality: u16,
    /// Coefficients come in several scans.
    pub is_progressive: bool,
    /// Pixels for one of the chroma, along and down: 1 or 2.
    pub sampling: [usize; 2],
    /// The value of the EXIF tag.
    pub orientation: Option<u8>,
}

/// A component with its blocks, whole units of the image in both directions.
struct Plane {
    /// Blocks in a unit, along and down.
    sampling: [usize; 2],
    is_chroma: bool,
    blocks_across: usize,
    /// Blocks that hold pixels, along and down.
    own_blocks: [usize; 2],
    blocks: Vec<[i32; 64]>,
}

/// Encodes grey or RGB pixels.
pub fn encode(pixels: &SamplePixels, kind: &JpegKind) -> Vec<u8> {
    let planes = planes(pixels, kind);
    let mut file = vec![0xFF, 0xD8];
    segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0", &mut file);
    if let Some(orientation) = kind.orientation {
        let exif = [&b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0"[..], &[orientation, 0, 0, 0, 0, 0, 0]]
            .concat();
        segment(0xE1, &exif, &mut file);
    }
    for (index, is_chroma) in [(0, false), (1, true)] {
        let table = quantisation(kind.quality, is_chroma);
        let in_order = ZIGZAG.iter().filter_map(|place| table.get(usize::from(*place)).copied());
        segment(0xDB, &std::iter::once(index).chain(in_order).collect::<Vec<u8>>(), &mut file);
    }
    let [h, w] = [pixels.height, pixels.width].map(|side| side.to_be_bytes());
    let count = u8::try_from(planes.len()).unwrap_or(3);
    let mut frame = vec![8, h[2], h[3], w[2], w[3], count];
    for (id, plane) in (1..).zip(&planes) {
        let [across, down] = plane.sampling.map(|factor| factor.to_le_bytes()[0]);
        frame.extend_from_slice(&[id, across << 4 | down, u8::from(plane.is_chroma)]);
    }
    segment(if kind.is_progressive { 0xC2 } else { 0xC0 }, &frame, &mut file);
    for (kind, table) in [(0x00, &DC_LUMINANCE), (0x01, &DC_CHROMA), (0x10, &AC_LUMINANCE), (0x11, &AC_CHROMA)] {
        segment(0xC4, &[&[kind], &table.counts[..], table.symbols].concat(), &mut file);
    }
    let all: Vec<usize> = (0..planes.len()).collect();
    if kind.is_progressive {
        scan(&planes, &all, 0..1, &mut file);
        for index in all {
            scan(&planes, &[index], 1..6, &mut file);
            scan(&planes, &[index], 6..64, &mut file);
        }
    } else {
        scan(&planes, &all, 0..64, &mut file);
    }
    file.extend_from_slice(&[0xFF, 0xD9]);
    file
}

fn segment(marker: u8, payload: &[u8], file: &mut Vec<u8>) {
    file.extend_from_slice(&[0xFF, marker]);
    file.extend_from_slice(&u16::try_from(payload.len() + 2).unwrap_or(u16::MAX).to_be_bytes());
    file.extend_from_slice(payload);
}

/// The quantised blocks of all components.
fn planes(pixels: &SamplePixels, kind: &JpegKind) -> Vec<Plane> {
    let (width, height) = (pixels.width as usize, pixels.height as usize);
    let [across, down] = if pixels.channels == 1 { [1, 1] } else { kind.sampling };
    let [units_across, units_down] = [width.div_ceil(8 * across), height.div_ceil(8 * down)];
    let pixel = |x: usize, y: usize| {
        let at = (y.min(height - 1) * width + x.min(width - 1)) * pixels.channels;
        pixels.bytes.get(at..at + pixels.channels).unwrap_or_default()
    };
    let cosines = cosines();
    let component = |index: usize| {
        let sampling = if index == 0 { [across, down] } else { [1, 1] };
        let step = if index == 0 { [1, 1] } else { [across, down] };
        let blocks_across = units_across * sampling[0];
        let table = quantisation(kind.quality, index > 0);
        let mut blocks = Vec::new();
        for row in 0..units_down * sampling[1] {
            for column in 0..blocks_across {
                let mut samples = [0.0; 64];
                for (place, sample) in samples.iter_mut().enumerate() {
                    let [x, y] = [(column * 8 + place % 8) * step[0], (row * 8 + place / 8) * step[1]];
                    let covered =
                        (0..step[0] * step[1]).map(|at| converted(pixel(x + at % step[0], y + at / step[0]), index));
                    *sample = covered.sum::<f64>() / (step[0] * step[1]) as f64;
                }
                blocks.push(transformed(&samples, &table, &cosines));
            }
        }
        let own = |side: usize, step: usize| side.div_ceil(step).div_ceil(8);
        let own_blocks = [own(width, step[0]), own(height, step[1])];
        Plane { sampling, is_chroma: index > 0, blocks_across, own_blocks, blocks }
    };
    (0..if pixels.channels == 1 { 1 } else { 3 }).map(component).collect()
}

/// Luminance, blue or red chroma of a pixel, about 0.
fn converted(pixel: &[u8], component: usize) -> f64 {
    match (pixel, component) {
        ([grey], _) => f64::from(*grey) - 128.0,
        ([red, green, blue, ..], _) => {
            let [red, green, blue] = [red, green, blue].map(|value| f64::from(*value));
            let [r, g, b, shift] = match component {
                0 => [0.299, 0.587, 0.114, -128.0],
                1 => [-0.168_735_9, -0.331_264_1, 0.5, 0.0],
                _ => [0.5, -0.418_687_6, -0.081_312_4, 0.0],
            };
            red * r + green * g + blue * b + shift
        }
        _ => 0.0,
    }
}

/// For each frequency, the weights of eight samples in a row.
fn cosines() -> [[f64; 8]; 8] {
    let mut cosines = [[0.0; 8]; 8];
    for (frequency, row) in cosines.iter_mut().enumerate() {
        let scale = if frequency == 0 { 0.125_f64.sqrt() } else { 0.5 };
        for (at, weight) in row.iter_mut().enumerate() {
            *weight = scale * ((2 * at + 1) as f64 * frequency as f64 * PI / 16.0).cos();
        }
    }
    cosines
}

/// The cosine transform of a block, divided and rounded, in the order of the file.
fn transformed(samples: &[f64; 64], table: &[u8; 64], cosines: &[[f64; 8]; 8]) -> [i32; 64] {
    let mut rows = [[0.0; 8]; 8];
    for (sums, row) in rows.iter_mut().zip(samples.as_chunks::<8>().0) {
        for (sum, weights) in sums.iter_mut().zip(cosines) {
            *sum = row.iter().zip(weights).map(|(sample, weight)| sample * weight).sum();
        }
    }
    let mut block = [0; 64];
    for (result, place) in block.iter_mut().zip(ZIGZAG.map(usize::from)) {
        let column = rows.iter().filter_map(|row| row.get(place % 8));
        let weights = cosines.get(place / 8).into_iter().flatten();
        let sum: f64 = column.zip(weights).map(|(value, weight)| value * weight).sum();
        let divisor = table.get(place).copied().unwrap_or(1);
        // The tables of codes end here.
        *result = (sum / f64::from(divisor)).round().clamp(-1023.0, 1023.0) as i32;
    }
    block
}

/// A scan of the coefficients `range` of some components. More than one follow each other in each unit.
fn scan(planes: &[Plane], indices: &[usize], range: std::ops::Range<usize>, file: &mut Vec<u8>) {
    let mut header = vec![u8::try_from(indices.len()).unwrap_or(1)];
    let chosen: Vec<&Plane> = indices.iter().filter_map(|index| planes.get(*index)).collect();
    for (index, plane) in indices.iter().zip(&chosen) {
        header.extend_from_slice(&[index.to_le_bytes()[0] + 1, if plane.is_chroma { 0x11 } else { 0 }]);
    }
    header.extend_from_slice(&[range.start.to_le_bytes()[0], range.end.to_le_bytes()[0] - 1, 0]);
    segment(0xDA, &header, file);
    let mut bits = BitWriter::default();
    let mut means = vec![0; chosen.len()];
    let mut block = |slot: usize, plane: &Plane, column: usize, row: usize| {
        let Some(block) = plane.blocks.get(row * plane.blocks_across + column) else { return };
        if let (0, [mean, ..], Some(before)) = (range.start, block, means.get_mut(slot)) {
            bits.put_mean(*mean - std::mem::replace(before, *mean), plane.is_chroma);
        }
        if range.end > 1 {
            bits.put_others(block.get(range.start.max(1)..range.end).unwrap_or_default(), plane.is_chroma);
        }
    };
    match chosen[..] {
        [plane] => {
            let [across, down] = plane.own_blocks;
            (0..across * down).for_each(|at| block(0, plane, at % across, at / across));
        }
        _ => {
            let Some(first) = chosen.first() else { return };
            let units_across = first.blocks_across / first.sampling[0];
            let units = first.blocks.len() / (first.sampling[0] * first.sampling[1]);
            for unit in 0..units {
                let [column, row] = [unit % units_across, unit / units_across];
                for (slot, plane) in chosen.iter().enumerate() {
                    let [across, down] = plane.sampling;
                    for at in 0..across * down {
                        block(slot, plane, column * across + at % across, row * down + at / across);
                    }
                }
            }
        }
    }
    bits.finish(file);
}

/// The bits of a scan.
#[derive(Default)]
struct BitWriter {
    bytes: Vec<u8>,
    pending: u32,
    count: u32,
}

impl BitWriter {
    fn put(&mut self, value: u32, size: u32) {
        for at in (0..size).rev() {
            self.pending = self.pending << 1 | (value >> at & 1);
            self.count += 1;
            if self.count == 8 {
                self.push();
            }
        }
    }

    fn push(&mut self) {
        let byte = self.pending.to_le_bytes()[0];
        self.bytes.push(byte);
        // A zero tells it from a marker.
        self.bytes.extend((byte == 0xFF).then_some(0));
        (self.pending, self.count) = (0, 0);
    }

    fn put_symbol(&mut self, table: &HuffmanCodes, symbol: u8) {
        let mut code = 0_u32;
        let mut symbols = table.symbols.iter();
        for (size, count) in (1_u32..).zip(table.counts) {
            code <<= 1;
            for known in symbols.by_ref().take(usize::from(count)) {
                if *known == symbol {
                    return self.put(code, size);
                }
                code += 1;
            }
        }
    }

    /// A number of `size` bits; a negative one less 1.
    fn put_number(&mut self, value: i32, size: u32) {
        let value = if value < 0 { value - 1 } else { value };
        self.put(value.cast_unsigned() & ((1 << size) - 1), size);
    }

    fn put_mean(&mut self, difference: i32, is_chroma: bool) {
        let size = bit_size(difference);
        self.put_symbol(if is_chroma { &DC_CHROMA } else { &DC_LUMINANCE }, size.to_le_bytes()[0]);
        self.put_number(difference, size);
    }

    fn put_others(&mut self, coefficients: &[i32], is_chroma: bool) {
        let table = if is_chroma { &AC_CHROMA } else { &AC_LUMINANCE };
        let mut zeros = 0_u8;
        for coefficient in coefficients {
            if *coefficient == 0 {
                zeros += 1;
                continue;
            }
            while zeros > 15 {
                self.put_symbol(table, 0xF0);
                zeros -= 16;
            }
            let size = bit_size(*coefficient);
            self.put_symbol(table, zeros << 4 | size.to_le_bytes()[0]);
            self.put_number(*coefficient, size);
            zeros = 0;
        }
        if zeros > 0 {
            self.put_symbol(table, 0);
        }
    }

    fn finish(mut self, file: &mut Vec<u8>) {
        while self.count > 0 {
            self.put(1, 1);
        }
        file.append(&mut self.bytes);
    }
}

const fn bit_size(value: i32) -> u32 {
    32 - value.unsigned_abs().leading_zeros()
}

/// The table of annex K for a quality, as libjpeg scales it.
fn quantisation(quality: u16, is_chroma: bool) -> [u8; 64] {
    let quality = u32::from(quality.clamp(1, 100));
    let scale = if quality < 50 { 5_000 / quality } else { 200 - quality * 2 };
    let table = if is_chroma { CHROMA } else { LUMINANCE };
    table.map(|value| u8::try_from(((u32::from(value) * scale + 50) / 100).clamp(1, 255)).unwrap_or(255))
}

/// A Huffman table: the count of codes of 1 to 16 bits, and their symbols.
struct HuffmanCodes {
    counts: [u8; 16],
    symbols: &'static [u8],
}

const LUMINANCE: [u8; 64] = [
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51,
    87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101,
    72, 92, 95, 98, 112, 100, 103, 99,
];
const CHROMA: [u8; 64] = [
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99,
];
const DC_LUMINANCE: HuffmanCodes = HuffmanCodes {
    counts: [0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
    symbols: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
};
const DC_CHROMA: HuffmanCodes = HuffmanCodes {
    counts: [0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
    symbols: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
};
const AC_LUMINANCE: HuffmanCodes = HuffmanCodes {
    counts: [0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 125],
    symbols: &[
        0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07, 0x22, 0x71,
        0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1, 0xf0, 0x24, 0x33, 0x62, 0x72,
        0x82, 0x09, 0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x34, 0x35, 0x36, 0x37,
        0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59,
        0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x83,
        0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3,
        0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3,
        0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2,
        0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
    ],
};
const AC_CHROMA: HuffmanCodes = HuffmanCodes {
    counts: [0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 119],
    symbols: &[
        0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71, 0x13, 0x22,
        0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33, 0x52, 0xf0, 0x15, 0x62, 0x72, 0xd1,
        0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17, 0x18, 0x19, 0x1a, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x35, 0x36,
        0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58,
        0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a,
        0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a,
        0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba,
        0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda,
        0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
    ],
};
