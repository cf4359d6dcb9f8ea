//! The ELF parts for hosting backends, in both directions: the libraries that a backend names as
//! the host that it was linked to, and a tiny library of that name whose symbols are the addresses
//! of our functions. Pure: bytes in, bytes out. 64 bits, little-endian, which x86-64 and aarch64
//! are; every offset of a file is checked.
//!
//! The written library has no code and no relocation: its symbols are absolute (`SHN_ABS`), which glibc takes as they
//! are since 2.28. One segment has all of it and can be written, because the loader fixes the addresses in the dynamic
//! section in place.

/// The begin of a file: magic, 64 bits, little-endian, version 1.
const IDENT: [u8; 7] = [0x7f, b'E', b'L', b'F', 2, 1, 1];
const HEADER_SIZE: usize = 64;
const PROGRAM_HEADER_SIZE: usize = 56;
const DYNAMIC_ENTRY_SIZE: usize = 16;
const SYMBOL_SIZE: usize = 24;
/// The start of a segment, in the file as in memory, is the same modulo this: the largest page of
/// both machines.
const PAGE_SIZE: u64 = 0x1_0000;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_STACK: u32 = 0x6474_e551;
/// Readable and writable.
const PF_RW: u32 = 6;
const ET_DYN: u16 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_SONAME: u64 = 14;
const SHN_ABS: u16 = 0xfff1;
/// A global function.
const FUNCTION: u8 = 0x12;

/// Maximum entries of a dynamic section and of program headers that are read: far more than any
/// linker writes.
const ENTRIES_MAX: usize = 4096;

/// The machine of a library: `e_machine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfMachine(u16);

impl ElfMachine {
    /// The one that this program was compiled for.
    pub const fn own() -> Self {
        Self(if cfg!(target_arch = "aarch64") { 183 } else { 62 })
    }
}

/// A symbol of a library that is written: its name and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsoluteSymbol {
    /// Its name.
    pub name: &'static str,
    /// Its address in this process.
    pub address: u64,
}

/// The libraries that a shared library needs (`DT_NEEDED`), in order.
///
/// # Errors
/// The reason why it is not a library of this machine, in words that follow "is".
pub fn needed_libraries(file: &[u8]) -> Result<Vec<String>, String> {
    let segments = read_segments(file)?;
    let dynamic =
        segments.iter().find(|segment| segment.kind == PT_DYNAMIC).ok_or("a file without a dynamic section")?;
    let entries = file.get(dynamic.offset..).and_then(|rest| rest.get(..dynamic.size.min(rest.len())));
    let entries: Vec<(u64, u64)> = entries
        .unwrap_or_default()
        .chunks_exact(DYNAMIC_ENTRY_SIZE)
        .take(ENTRIES_MAX)
        .map_while(|entry| Some((read_u64(entry, 0)?, read_u64(entry, 8)?)))
        .take_while(|(tag, _)| *tag != DT_NULL)
        .collect();
    let value = |wanted: u64| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
    let strings = value(DT_STRTAB).and_then(|address| offset_of(&segments, address));
    let strings = strings.and_then(|offset| file.get(offset..)).ok_or("a file whose strings are not in it")?;
    let size = value(DT_STRSZ).and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
    let strings = strings.get(..size.min(strings.len())).unwrap_or_default();
    let name = |offset: u64| {
        let text = strings.get(usize::try_from(offset).ok()?..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(text.get(..end)?).into_owned())
    };
    let needed = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).map(|(_, offset)| name(*offset));
    needed.collect::<Option<Vec<_>>>().ok_or_else(|| "a file whose names are not in it".to_owned())
}

/// Returns true if a name is that of Triton's own library: `libtritonserver.so`, also as a wheel's
/// tools rename it (`libtritonserver-717102f0.so`).
pub fn is_host_library(name: &str) -> bool {
    name.strip_prefix("libtritonserver").is_some_and(|rest| rest.contains(".so") && !rest.contains('/'))
}

/// The fields of a program header that are used.
struct ElfSegment {
    kind: u32,
    offset: usize,
    address: u64,
    size: usize,
}

fn read_segments(file: &[u8]) -> Result<Vec<ElfSegment>, String> {
    if !file.starts_with(&IDENT) {
        return Err("no ELF file of 64 bits".to_owned());
    }
    let header = file.get(..HEADER_SIZE).ok_or("a file that ends too early")?;
    let machine = ElfMachine(read_u16(header, 18).unwrap_or(0));
    if machine != ElfMachine::own() {
        return Err(format!("for another machine ({} and not {})", machine.0, ElfMachine::own().0));
    }
    let (begin, count) = (read_u64(header, 32).unwrap_or(0), read_u16(header, 56).unwrap_or(0));
    let headers = usize::try_from(begin).ok().and_then(|begin| file.get(begin..)).unwrap_or_default();
    let segment = |header: &[u8]| {
        Some(ElfSegment {
            kind: read_u32(header, 0)?,
            offset: usize::try_from(read_u64(header, 8)?).ok()?,
            address: read_u64(header, 16)?,
            size: usize::try_from(read_u64(header, 32)?).ok()?,
        })
    };
    let headers = headers.chunks_exact(PROGRAM_HEADER_SIZE).take(usize::from(count).min(ENTRIES_MAX));
    Ok(headers.filter_map(segment).collect())
}

/// The offset in the file of an address of the loaded library.
fn offset_of(segments: &[ElfSegment], address: u64) -> Option<usize> {
    let loaded = segments.iter().filter(|segment| segment.kind == PT_LOAD);
    loaded
        .filter_map(|segment| {
            let within = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            (within < segment.size).then(|| segment.offset.checked_add(within))?
        })
        .next()
}

fn read_u16(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn read_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// A library of this name with these symbols, for the program's own machine.
pub fn encode_library(soname: &str, symbols: &[AbsoluteSymbol]) -> Vec<u8> {
    let mut strings = vec![0];
    let mut add = |text: &str| {
        let at = strings.len();
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
        at as u64
    };
    let soname_at = add(soname);
    // The first symbol is the undefined one.
    let mut table = vec![0; SYMBOL_SIZE];
    for symbol in symbols {
        let name = u32::try_from(add(symbol.name)).unwrap_or(0);
        table.extend_from_slice(&name.to_le_bytes());
        table.extend_from_slice(&[FUNCTION, 0]);
        table.extend_from_slice(&SHN_ABS.to_le_bytes());
        table.extend_from_slice(&symbol.address.to_le_bytes());
        table.extend_from_slice(&0_u64.to_le_bytes());
    }
    let hash = encode_hash(symbols);
    let dynamic_at = HEADER_SIZE + 3 * PROGRAM_HEADER_SIZE;
    let dynamic_size = 7 * DYNAMIC_ENTRY_SIZE;
    let table_at = dynamic_at + dynamic_size;
    let hash_at = table_at + table.len();
    let strings_at = hash_at + hash.len();
    let size = strings_at + strings.len();
    let mut out = encode_header(size, dynamic_at, dynamic_size);
    for (tag, value) in [
        (DT_SONAME, soname_at),
        (DT_HASH, hash_at as u64),
        (DT_STRTAB, strings_at as u64),
        (DT_STRSZ, strings.len() as u64),
        (DT_SYMTAB, table_at as u64),
        (DT_SYMENT, SYMBOL_SIZE as u64),
        (DT_NULL, 0),
    ] {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&value.to_le_bytes());
    }
    out.extend_from_slice(&table);
    out.extend_from_slice(&hash);
    out.extend_from_slice(&strings);
    out
}

/// The header and the program headers.
fn encode_header(size: usize, dynamic_at: usize, dynamic_size: usize) -> Vec<u8> {
    let mut out = IDENT.to_vec();
    out.resize(16, 0);
    out.extend_from_slice(&ET_DYN.to_le_bytes());
    out.extend_from_slice(&ElfMachine::own().0.to_le_bytes());
    out.extend_from_slice(&1_u32.to_le_bytes());
    // No entry point; the program headers follow; no sections.
    for value in [0, HEADER_SIZE as u64, 0] {
        out.extend_from_slice(&value.to_le_bytes());
    }
    out.extend_from_slice(&0_u32.to_le_bytes());
    let sizes = [HEADER_SIZE, PROGRAM_HEADER_SIZE, 3, 0, 0, 0];
    for value in sizes {
        out.extend_from_slice(&u16::try_from(value).unwrap_or(0).to_le_bytes());
    }
    for (kind, at, size, align) in [
        (PT_LOAD, 0, size, PAGE_SIZE),
        (PT_DYNAMIC, dynamic_at, dynamic_size, 8),
        // Without it the loader makes the stacks of the process executable.
        (PT_GNU_STACK, 0, 0, 16),
    ] {
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&PF_RW.to_le_bytes());
        for value in [at as u64, at as u64, at as u64, size as u64, size as u64, align] {
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
    out
}

/// The table of `DT_HASH`: bucket and chain counts, the buckets, the chains.
fn encode_hash(symbols: &[AbsoluteSymbol]) -> Vec<u8> {
    let bucket_count = symbols.len().max(1);
    let mut buckets = vec![0_u32; bucket_count];
    let mut chains = vec![0_u32; symbols.len() + 1];
    for (index, symbol) in (1_u32..).zip(symbols) {
        let bucket = usize::try_from(hash(symbol.name)).unwrap_or(0) % bucket_count;
        let head = buckets.get_mut(bucket).map(|head| std::mem::replace(head, index)).unwrap_or(0);
        if let Some(chain) = usize::try_from(index).ok().and_then(|index| chains.get_mut(index)) {
            *chain = head;
        }
    }
    let counts = [bucket_count, chains.len()].map(|count| u32::try_from(count).unwrap_or(0));
    let words = counts.into_iter().chain(buckets).chain(chains);
    let mut out: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    // The next part is aligned to 8 bytes by its reader.
    out.resize(out.len().next_multiple_of(8), 0);
    out
}

/// The hash of a name in `DT_HASH` (System V ABI).
fn hash(name: &str) -> u32 {
    name.bytes().fold(0_u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols() -> Vec<AbsoluteSymbol> {
        (0..40).map(|index| AbsoluteSymbol { name: NAMES[index % 2], address: index as u64 }).collect()
    }

    const NAMES: [&str; 2] = ["TRITONSERVER_ErrorNew", "TRITONBACKEND_ApiVersion"];

    #[test]
    fn the_hash_is_that_of_the_system_v_abi() {
        assert_eq!(hash(""), 0);
        assert_eq!(hash("printf"), 0x077905a6);
        assert_eq!(hash("exit"), 0x0006cf04);
        assert_eq!(hash("syscall"), 0x0b09985c);
    }

    #[test]
    fn a_written_library_needs_nothing_and_names_itself() {
        let file = encode_library("libtritonserver.so", &symbols());
        assert_eq!(needed_libraries(&file), Ok(Vec::new()));
        let text = String::from_utf8_lossy(&file);
        assert!(text.contains("\0libtritonserver.so\0TRITONSERVER_ErrorNew\0"));
    }

    #[test]
    fn the_test_program_itself_needs_the_c_library() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let needed = needed_libraries(&own).unwrap();
        assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
    }

    #[test]
    fn no_broken_file_is_read_beyond_its_end() {
        let file = encode_library("libtritonserver.so", &symbols());
        for end in 0..file.len() {
            let _ = needed_libraries(&file[..end]);
        }
        for at in 0..HEADER_SIZE + 3 * PROGRAM_HEADER_SIZE + 7 * DYNAMIC_ENTRY_SIZE {
            for value in [0, 0x7f, 0xff] {
                let mut broken = file.clone();
                broken[at] = value;
                let _ = needed_libraries(&broken);
            }
        }
        assert_eq!(needed_libraries(b"#!/bin/sh"), Err("no ELF file of 64 bits".to_owned()));
        let mut other = file;
        other[18] = 3;
        assert!(needed_libraries(&other).unwrap_err().starts_with("for another machine (3 and not"));
    }

    #[test]
    fn the_names_of_tritons_library_are_known_also_as_a_wheel_has_them() {
        let check = |name: &str, want: bool| assert_eq!(is_host_library(name), want, "{name}");
        check("libtritonserver.so", true);
        check("libtritonserver-717102f0.so", true);
        check("libtritonserver.so.2", true);
        check("libtriton_python.so", false);
        check("libtritonserver", false);
        check("libc.so.6", false);
    }
}
