//! Scans of baseline and extended sequential files: each row of units is decoded to coefficients, and these
//! to samples.

use base::error::Error;

use super::fault;
use super::frame::{Component, JpegFrame, Scan, ScanComponent};
use super::huffman::{Bits, ENTRIES, HuffmanEntry, HuffmanTable, ScanReader};
use super::transform::{Band, BlockMut, Factors};

/// The Huffman tables at a scan.
#[derive(Clone, Copy)]
pub struct Tables<'a> {
    pub dc: &'a [Option<Box<HuffmanTable>>; 4],
    pub ac: &'a [Option<Box<HuffmanTable>>; 4],
}

impl<'a> Tables<'a> {
    pub fn dc(self, index: usize) -> Result<&'a HuffmanTable, Error> {
        let table = self.dc.get(index).and_then(Option::as_deref);
        table.ok_or_else(|| fault("a Huffman table is missing"))
    }

    pub fn ac(self, index: usize) -> Result<&'a HuffmanTable, Error> {
        let table = self.ac.get(index).and_then(Option::as_deref);
        table.ok_or_else(|| fault("a Huffman table is missing"))
    }
}

/// The units of a scan: those of the frame, or the blocks of its only component (T.81 A.2).
pub struct Units {
    pub across: usize,
    pub down: usize,
    /// Blocks of the component in a unit, along and down.
    pub blocks: Vec<(usize, usize)>,
}

impl Units {
    pub fn of(frame: &JpegFrame, scan: &Scan) -> Self {
        let components = scan.components.iter().filter_map(|part| frame.components.get(part.index));
        if let [ScanComponent { index, .. }] = scan.components[..]
            && let Some(component) = frame.components.get(index)
        {
            let (across, down) = (component.width.div_ceil(8), component.height.div_ceil(8));
            return Self { across, down, blocks: vec![(1, 1)] };
        }
        Self {
            across: frame.width.div_ceil(8 * frame.sampling.across),
            down: frame.height.div_ceil(8 * frame.sampling.down),
            blocks: components.map(|component| (component.sampling.across, component.sampling.down)).collect(),
        }
    }
}

/// Counts units until the next restart marker.
pub struct Restarts {
    interval: usize,
    left: usize,
    number: u8,
}

impl Restarts {
    pub const fn new(interval: usize) -> Self {
        Self { interval, left: interval, number: 0 }
    }

    /// Returns true if the predictions start again before this unit, behind a marker.
    #[inline(always)]
    pub fn is_due(&mut self, bits: &mut Bits<'_>) -> Result<bool, Error> {
        if self.interval == 0 {
            return Ok(false);
        }
        if self.left > 0 {
            self.left -= 1;
            return Ok(false);
        }
        if bits.is_exhausted() || !bits.restart(self.number) {
            return Err(fault("the file is corrupt: a restart marker is missing"));
        }
        self.number = (self.number + 1) % 8;
        self.left = self.interval - 1;
        Ok(true)
    }
}

/// A component's part of a row of units.
struct UnitRow<'a> {
    dc: &'a HuffmanTable,
    ac: &'a HuffmanTable,
    factors: Factors,
    /// Blocks in a unit along, and its rows of blocks.
    across: usize,
    bands: Vec<Band>,
    prediction: i32,
}

/// Decodes a scan to samples. Returns the bytes behind it.
pub fn decode<'a>(
    frame: &mut JpegFrame,
    scan: &Scan,
    tables: Tables<'_>,
    restart_interval: usize,
    mut bits: Bits<'a>,
) -> Result<&'a [u8], Error> {
    let units = Units::of(frame, scan);
    let mut rows = Vec::new();
    for (part, (across, down)) in scan.components.iter().zip(&units.blocks) {
        let quantisation = frame.components.get(part.index).and_then(|component| component.quantisation);
        let band = || Band::new(units.across * across);
        rows.push(UnitRow {
            dc: tables.dc(part.dc_table)?,
            ac: tables.ac(part.ac_table)?,
            factors: Factors::new(&quantisation.unwrap_or([0; 64])),
            across: *across,
            bands: std::iter::repeat_with(band).take(*down).collect(),
            prediction: 0,
        });
    }
    let mut restarts = Restarts::new(restart_interval);
    for row_index in 0..units.down {
        for unit in 0..units.across {
            if restarts.is_due(&mut bits)? {
                rows.iter_mut().for_each(|row| row.prediction = 0);
            }
            for row in &mut rows {
                row.read_unit(unit, &mut bits);
            }
        }
        if bits.is_exhausted() {
            return Err(fault("the file is truncated"));
        }
        for (row, part) in rows.iter_mut().zip(&scan.components) {
            if let Some(component) = frame.components.get_mut(part.index) {
                row.write_samples(component, row_index);
            }
        }
    }
    Ok(bits.into_rest())
}

impl UnitRow<'_> {
    #[inline(always)]
    fn read_unit(&mut self, unit: usize, bits: &mut Bits<'_>) {
        let (reader, bytes) = bits.parts();
        for band in &mut self.bands {
            for index in unit * self.across..(unit + 1) * self.across {
                let Some(block) = band.block(index) else { continue };
                let tables = (self.dc, self.ac, &self.factors);
                self.prediction = read_block((reader, bytes), tables, self.prediction, block);
            }
        }
    }

    /// Transforms the coefficients to samples, and clears them.
    fn write_samples(&mut self, component: &mut Component, row_index: usize) {
        let stride = component.stride();
        let rows = component.samples.chunks_exact_mut(stride * 8).skip(row_index * self.bands.len());
        for (rows, band) in rows.zip(&mut self.bands) {
            band.write_samples(rows);
        }
    }
}

/// Reads a block (T.81 F.2.2). Returns the prediction of the next one.
#[inline(always)]
fn read_block(
    (reader, bytes): (&mut ScanReader, &[u8]),
    (dc, ac, factors): (&HuffmanTable, &HuffmanTable, &Factors),
    prediction: i32,
    mut block: BlockMut<'_>,
) -> i32 {
    let mut bits = *reader;
    bits.refill(bytes);
    let mean = prediction.wrapping_add(bits.difference(dc));
    block.set(0, mean as i16, factors);
    let mut at = 1_usize;
    'block: while at < 64 {
        bits.refill(bytes);
        for _ in 0..ENTRIES {
            let (value, is_last) = match bits.entry(ac) {
                HuffmanEntry::Number { run, value } => {
                    at = at.wrapping_add(run);
                    (value, false)
                }
                HuffmanEntry::Symbol(0xF0) => {
                    at = at.wrapping_add(16);
                    continue 'block;
                }
                HuffmanEntry::Symbol(symbol) if symbol & 15 == 0 => break 'block,
                HuffmanEntry::Symbol(symbol) => {
                    at = at.wrapping_add(usize::from(symbol >> 4));
                    (bits.number(u32::from(symbol & 15)) as i16, true)
                }
            };
            block.set(at, value, factors);
            at = at.wrapping_add(1);
            if is_last || at >= 64 {
                break;
            }
        }
    }
    *reader = bits;
    mean
}
