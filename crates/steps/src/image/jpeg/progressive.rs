//! Scans of progressive files: bits of coefficients, which are kept until the last scan (T.81 G.1.2).

use base::error::Error;

use super::fault;
use super::frame::{Component, JpegFrame, Scan};
use super::huffman::{Bits, HuffmanTable, ScanReader};
use super::scan::{Restarts, Tables, Units};

/// Decodes a scan into the coefficients. Returns the bytes behind it.
pub fn decode<'a>(
    frame: &mut JpegFrame,
    scan: &Scan,
    tables: Tables<'_>,
    restart_interval: usize,
    bits: Bits<'a>,
) -> Result<&'a [u8], Error> {
    let units = Units::of(frame, scan);
    for part in &scan.components {
        if let Some(component) = frame.components.get_mut(part.index) {
            note_bits(component, scan)?;
        }
    }
    let restarts = Restarts::new(restart_interval);
    if scan.first == 0 {
        return dc_scan(frame, scan, tables, &units, bits, restarts);
    }
    let Some(part) = scan.components.first() else { return Err(fault("a scan header is malformed")) };
    let Some(component) = frame.components.get_mut(part.index) else {
        return Err(fault("a scan header is malformed"));
    };
    ac_scan(component, scan, tables.ac(part.ac_table)?, &units, bits, restarts)
}

/// Notes that the bits of a scan have come.
fn note_bits(component: &mut Component, scan: &Scan) -> Result<(), Error> {
    for missing in component.missing_bits.iter_mut().take(scan.last + 1).skip(scan.first) {
        let is_in_order = match missing {
            None => scan.bit_before == 0,
            Some(before) => *before == scan.bit_before && scan.bit_before > 0,
        };
        // libjpeg warns and goes on; the scans of such a file contradict each other.
        if !is_in_order {
            return Err(fault("the file is corrupt: a scan refines what was not sent"));
        }
        *missing = Some(scan.bit);
    }
    Ok(())
}

fn dc_scan<'a>(
    frame: &mut JpegFrame,
    scan: &Scan,
    tables: Tables<'_>,
    units: &Units,
    mut bits: Bits<'a>,
    mut restarts: Restarts,
) -> Result<&'a [u8], Error> {
    let is_first = scan.bit_before == 0;
    let mut parts = Vec::new();
    for (part, blocks) in scan.components.iter().zip(&units.blocks) {
        let table = if is_first { Some(tables.dc(part.dc_table)?) } else { None };
        parts.push((part.index, table, *blocks, 0_i32));
    }
    for unit_row in 0..units.down {
        for unit in 0..units.across {
            if restarts.is_due(&mut bits)? {
                parts.iter_mut().for_each(|(.., prediction)| *prediction = 0);
            }
            for (index, table, (across, down), prediction) in &mut parts {
                let Some(component) = frame.components.get_mut(*index) else { continue };
                for line in 0..*down {
                    let start = (unit_row * *down + line) * component.blocks_across + unit * *across;
                    for block in component.coefficients.iter_mut().skip(start).take(*across) {
                        let (reader, bytes) = bits.parts();
                        reader.refill(bytes);
                        let [first, ..] = block;
                        if let Some(table) = table {
                            let difference = reader.difference(table);
                            *prediction = prediction.wrapping_add(difference);
                            *first = prediction.wrapping_shl(u32::from(scan.bit)) as i16;
                        } else if reader.take(1) == 1 {
                            *first |= 1 << scan.bit;
                        }
                    }
                }
            }
        }
        if bits.is_exhausted() {
            return Err(fault("the file is truncated"));
        }
    }
    Ok(bits.into_rest())
}

fn ac_scan<'a>(
    component: &mut Component,
    scan: &Scan,
    table: &HuffmanTable,
    units: &Units,
    mut bits: Bits<'a>,
    mut restarts: Restarts,
) -> Result<&'a [u8], Error> {
    // Blocks that have no further coefficients in this band.
    let mut ended = 0_u32;
    let across = component.blocks_across.max(1);
    for row in component.coefficients.chunks_exact_mut(across).take(units.down) {
        for block in row.iter_mut().take(units.across) {
            if restarts.is_due(&mut bits)? {
                ended = 0;
            }
            let (reader, bytes) = bits.parts();
            let mut taken = *reader;
            if scan.bit_before == 0 {
                first_bits(block, scan, table, (&mut taken, bytes), &mut ended);
            } else {
                next_bit(block, scan, table, (&mut taken, bytes), &mut ended);
            }
            *reader = taken;
        }
        if bits.is_exhausted() {
            return Err(fault("the file is truncated"));
        }
    }
    Ok(bits.into_rest())
}

/// Reads the first bits of a band of coefficients (T.81 G.1.2.2).
#[inline(always)]
fn first_bits(
    block: &mut [i16; 64],
    scan: &Scan,
    table: &HuffmanTable,
    (bits, bytes): (&mut ScanReader, &[u8]),
    ended: &mut u32,
) {
    if *ended > 0 {
        *ended -= 1;
        return;
    }
    let mut at = scan.first;
    while at <= scan.last {
        bits.refill(bytes);
        let symbol = bits.symbol(table);
        let (run, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        if size == 0 && run < 15 {
            *ended = (1 << run) - 1 + bits.take(run as u32);
            return;
        }
        at += run;
        if size > 0 {
            let value = bits.number(size).wrapping_shl(u32::from(scan.bit)) as i16;
            if let Some(coefficient) = block.get_mut(at) {
                *coefficient = value;
            }
        }
        at += 1;
    }
}

/// Reads one more bit of a band of coefficients (T.81 G.1.2.3).
fn next_bit(
    block: &mut [i16; 64],
    scan: &Scan,
    table: &HuffmanTable,
    (bits, bytes): (&mut ScanReader, &[u8]),
    ended: &mut u32,
) {
    let bit = 1_i16 << scan.bit;
    let mut at = scan.first;
    if *ended == 0 {
        while at <= scan.last {
            bits.refill(bytes);
            let symbol = bits.symbol(table);
            let (mut run, size) = (symbol >> 4, symbol & 15);
            let mut value = 0;
            if size > 0 {
                // A new coefficient has one bit, of either sign.
                value = if bits.take(1) == 1 { bit } else { -bit };
            } else if run < 15 {
                *ended = (1 << run) + bits.take(u32::from(run));
                break;
            }
            while at <= scan.last {
                let Some(coefficient) = block.get_mut(at) else { break };
                if *coefficient != 0 {
                    refine(coefficient, bit, bits, bytes);
                } else if run == 0 {
                    *coefficient = value;
                    break;
                } else {
                    run -= 1;
                }
                at += 1;
            }
            at += 1;
        }
    }
    if *ended > 0 {
        while at <= scan.last {
            if let Some(coefficient) = block.get_mut(at)
                && *coefficient != 0
            {
                refine(coefficient, bit, bits, bytes);
            }
            at += 1;
        }
        *ended -= 1;
    }
}

#[inline(always)]
fn refine(coefficient: &mut i16, bit: i16, bits: &mut ScanReader, bytes: &[u8]) {
    bits.refill(bytes);
    if bits.take(1) == 1 && *coefficient & bit == 0 {
        *coefficient = coefficient.wrapping_add(if *coefficient >= 0 { bit } else { -bit });
    }
}
