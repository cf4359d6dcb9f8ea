//! The frame: sides, components, and the samples and coefficients that scans fill.

use base::error::Error;

use super::fault;
use super::transform::{Band, Factors};
use crate::image::check_size;

/// The image that a frame header describes (T.81 B.2.2).
pub struct JpegFrame {
    pub width: usize,
    pub height: usize,
    pub is_progressive: bool,
    /// The greatest sampling factors.
    pub sampling: Sampling,
    /// One component, three or four.
    pub components: Vec<Component>,
}

/// Samples of a component for each unit of the frame, along and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    pub across: usize,
    pub down: usize,
}

/// A component of the frame.
pub struct Component {
    pub id: u8,
    pub sampling: Sampling,
    /// Samples that belong to the image.
    pub width: usize,
    pub height: usize,
    /// Blocks in a row, and rows of them, in whole units of the frame.
    pub blocks_across: usize,
    pub blocks_down: usize,
    /// Its samples: `blocks_down` × 8 rows of [`Self::stride`].
    pub samples: Vec<u8>,
    /// Its coefficients in the file's order, before they are multiplied: of a progressive file alone.
    pub coefficients: Vec<[i16; 64]>,
    /// For each coefficient in the file's order, the bits that are still to come; `None` before the first
    /// scan with it.
    pub missing_bits: [Option<u8>; 64],
    quantisation_index: usize,
    /// As it was at the component's first scan.
    pub quantisation: Option<[i16; 64]>,
}

/// A scan header (T.81 B.2.3).
pub struct Scan {
    pub components: Vec<ScanComponent>,
    /// The first and last coefficient.
    pub first: usize,
    pub last: usize,
    /// The bit that came before, 0 for the first scan of the coefficients, and the bit that comes.
    pub bit_before: u8,
    pub bit: u8,
}

/// A component of a scan.
pub struct ScanComponent {
    pub index: usize,
    pub dc_table: usize,
    pub ac_table: usize,
}

impl Component {
    /// Bytes in a row of samples.
    pub const fn stride(&self) -> usize {
        self.blocks_across * 8
    }
}

impl JpegFrame {
    pub fn read(payload: &[u8], is_progressive: bool) -> Result<Self, Error> {
        let malformed = || fault("the frame header is malformed");
        let ([precision, h1, h0, w1, w0, count], rest) = payload.split_first_chunk().ok_or_else(malformed)?;
        if *precision != 8 {
            return Err(fault(&format!("samples of {precision} bits are not supported")));
        }
        let [width, height] = [[w1, w0], [h1, h0]].map(|[high, low]| usize::from(*high) << 8 | usize::from(*low));
        match count {
            1 | 3 | 4 => {}
            _ => return Err(fault(&format!("files of {count} components are not supported"))),
        }
        check_size("JPEG", width, height)?;
        let parts = rest.as_chunks::<3>().0.get(..usize::from(*count)).ok_or_else(malformed)?;
        let factors = parts
            .iter()
            .map(|[_, sampling, _]| Sampling { across: usize::from(sampling >> 4), down: usize::from(sampling & 15) });
        let factors: Vec<_> = factors.collect();
        if factors.iter().any(|factor| !(1..=4).contains(&factor.across) || !(1..=4).contains(&factor.down)) {
            return Err(fault("a sampling factor is not from 1 to 4"));
        }
        let sampling = Sampling {
            across: factors.iter().map(|factor| factor.across).max().unwrap_or(1),
            down: factors.iter().map(|factor| factor.down).max().unwrap_or(1),
        };
        let is_whole = |factor: &Sampling| {
            sampling.across.is_multiple_of(factor.across) && sampling.down.is_multiple_of(factor.down)
        };
        if !factors.iter().all(is_whole) {
            return Err(fault("fractional sampling is not supported"));
        }
        let units_across = width.div_ceil(8 * sampling.across);
        let units_down = height.div_ceil(8 * sampling.down);
        let component = |(part, factor): (&[u8; 3], &Sampling)| {
            let [id, _, quantisation_index] = *part;
            Component {
                id,
                sampling: *factor,
                width: (width * factor.across).div_ceil(sampling.across),
                height: (height * factor.down).div_ceil(sampling.down),
                blocks_across: units_across * factor.across,
                blocks_down: units_down * factor.down,
                samples: Vec::new(),
                coefficients: Vec::new(),
                missing_bits: [None; 64],
                quantisation_index: usize::from(quantisation_index),
                quantisation: None,
            }
        };
        let components = parts.iter().zip(&factors).map(component).collect();
        Ok(Self { width, height, is_progressive, sampling, components })
    }

    /// Blocks of all components that hold samples of the image.
    pub fn block_count(&self) -> usize {
        let blocks = |component: &Component| component.width.div_ceil(8) * component.height.div_ceil(8);
        self.components.iter().map(blocks).sum()
    }

    /// Reads a scan header, and prepares the components that have their first scan.
    pub fn scan(&mut self, payload: &[u8], quantisation: &[Option<[u16; 64]>; 4]) -> Result<Scan, Error> {
        let malformed = || fault("a scan header is malformed");
        let (count, rest) = payload.split_first().ok_or_else(malformed)?;
        let (selectors, rest) = rest.split_at_checked(usize::from(*count) * 2).ok_or_else(malformed)?;
        let [first, last, bits, ..] = rest else { return Err(malformed()) };
        let mut components = Vec::new();
        for [id, tables] in selectors.as_chunks().0 {
            let index = self.components.iter().position(|component| component.id == *id).ok_or_else(malformed)?;
            if components.iter().any(|component: &ScanComponent| component.index == index) {
                return Err(malformed());
            }
            let [dc_table, ac_table] = [tables >> 4, tables & 15].map(usize::from);
            components.push(ScanComponent { index, dc_table, ac_table });
        }
        let blocks = |component: &ScanComponent| {
            self.components.get(component.index).map_or(0, |it| it.sampling.across * it.sampling.down)
        };
        let is_alone = components.len() == 1;
        if components.is_empty() || !is_alone && components.iter().map(blocks).sum::<usize>() > UNIT_BLOCKS_MAX {
            return Err(malformed());
        }
        let scan = Scan {
            components,
            first: usize::from(*first),
            last: usize::from(*last),
            bit_before: bits >> 4,
            bit: bits & 15,
        };
        if self.is_progressive && !is_valid(&scan, is_alone) {
            return Err(malformed());
        }
        for ScanComponent { index, .. } in &scan.components {
            if let Some(component) = self.components.get_mut(*index) {
                component.prepare(quantisation, self.is_progressive)?;
            }
        }
        Ok(scan)
    }

    /// Ends the frame: a progressive one is transformed to samples.
    pub fn finish(&mut self) -> Result<(), Error> {
        for component in &mut self.components {
            if component.quantisation.is_none() {
                return Err(fault("the file is truncated: a component has no scan"));
            }
            if !self.is_progressive {
                continue;
            }
            // libjpeg-turbo smooths blocks unless the first ten coefficients are complete.
            if component.missing_bits.iter().take(10).any(|missing| *missing != Some(0)) {
                return Err(fault("the file is truncated: it is progressive and lacks scans"));
            }
            let size = component.blocks_across * component.blocks_down * 64;
            component.samples = vec![0; size];
            let (stride, across) = (component.stride(), component.blocks_across);
            let factors = Factors::new(&component.quantisation.unwrap_or([0; 64]));
            let mut band = Band::new(across);
            let rows = component.samples.chunks_exact_mut(stride * 8);
            for (rows, blocks) in rows.zip(component.coefficients.chunks_exact(across)) {
                for (index, coefficients) in blocks.iter().enumerate() {
                    let Some(mut block) = band.block(index) else { continue };
                    for (at, coefficient) in coefficients.iter().enumerate() {
                        block.set(at, *coefficient, &factors);
                    }
                }
                band.write_samples(rows);
            }
            component.coefficients = Vec::new();
        }
        Ok(())
    }
}

impl Component {
    /// Has memory and the quantisation table ready, at the first scan of the component.
    fn prepare(&mut self, tables: &[Option<[u16; 64]>; 4], is_progressive: bool) -> Result<(), Error> {
        if self.quantisation.is_some() {
            return if is_progressive { Ok(()) } else { Err(fault("a component has two scans")) };
        }
        let table = tables.get(self.quantisation_index).copied().flatten();
        let table = table.ok_or_else(|| fault("a quantisation table is missing"))?;
        self.quantisation = Some(table.map(u16::cast_signed));
        let blocks = self.blocks_across * self.blocks_down;
        if is_progressive {
            self.coefficients = vec![[0; 64]; blocks];
        } else {
            self.samples = vec![0; blocks * 64];
        }
        Ok(())
    }
}

/// The rules for scans of progressive files (T.81 G.1.1.1).
const fn is_valid(scan: &Scan, is_alone: bool) -> bool {
    let is_band = if scan.first == 0 { scan.last == 0 } else { scan.first <= scan.last && scan.last < 64 && is_alone };
    let is_bit = scan.bit <= 13 && (scan.bit_before == 0 || scan.bit_before == scan.bit + 1);
    is_band && is_bit
}

/// Blocks in a unit of a scan of several components (T.81 B.2.3).
const UNIT_BLOCKS_MAX: usize = 10;
