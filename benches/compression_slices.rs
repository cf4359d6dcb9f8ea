//! The longest time that one slice of compression or inflation takes, over the bodies that are worst for it: other work
//! of a shard waits at most for this time. CPU time of the thread, so that other programs do not count. In one thread,
//! in memory, without sockets.
//!
//! `cargo bench --bench compression_slices`.

use std::time::Duration;

use bytes::Bytes;
use deuteron::limits::INFLATE_OUTPUT_SLICE;
use deuteron::wire::compression::Coding;
use deuteron::wire::compression::deflate::{DeflateLevel, Deflation};
use deuteron::wire::compression::inflate::Inflation;
use rustix::time::{ClockId, clock_gettime};

/// Bytes of a plain body: the largest that is taken by default.
const BODY_SIZE: usize = 64 * 1024 * 1024;
/// Bytes of an answer: every slice is like the next, and the highest levels take long.
const ANSWER_SIZE: usize = 8 * 1024 * 1024;
/// Compressed bytes whose blocks have few bytes and a code table each.
const BLOCKS_SIZE: usize = 1024 * 1024;

/// Makes a byte from a random number.
type Make = fn(u64) -> u8;

/// Plain bytes: their name, and the function that makes them.
const PLAIN: [(&str, Make); 4] = [
    ("random", |random| random.to_le_bytes()[7]),
    ("four values", |random| b'a'.wrapping_add(random.to_le_bytes()[7] & 3)),
    ("pixels", |random| 128_u8.wrapping_add(random.to_le_bytes()[7] & 15)),
    ("zeros", |_| 0),
];

fn main() {
    println!("longest slice, µs of CPU (all of it, ms)\n\ninflation");
    for (name, make) in PLAIN {
        for (coding, level) in [(Coding::Gzip, DeflateLevel::High), (Coding::Zstd, DeflateLevel::High)] {
            let packed = packed(coding, level, &plain(make, BODY_SIZE));
            println!("{:8} {name:28} {}", coding.name(), inflate(coding, packed));
        }
    }
    println!("{:8} {:28} {}", "deflate", "a table for each byte", inflate(Coding::Deflate, tables()));
    for size in [16, 64, 256, 1_024] {
        let packed = flushed(&plain(PLAIN[1].1, BLOCKS_SIZE), size);
        println!("{:8} {:28} {}", "zstd", format!("a block for {size} bytes"), inflate(Coding::Zstd, packed));
    }
    println!("\ncompression, with the encoder made in the first slice");
    for (name, make) in PLAIN {
        let plain = plain(make, ANSWER_SIZE);
        // gRPC has levels and no zstd, HTTP the lowest.
        let gzip = [DeflateLevel::Low, DeflateLevel::Medium, DeflateLevel::High].map(|level| (Coding::Gzip, level));
        for (coding, level) in gzip.into_iter().chain([(Coding::Zstd, DeflateLevel::Low)]) {
            println!("{:8} {name:12} {:15} {}", coding.name(), format!("{level:?}"), deflate(coding, level, &plain));
        }
    }
}

/// The longest of some times, and their sum.
#[derive(Default)]
struct Times {
    longest: Duration,
    sum: Duration,
}

impl Times {
    fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = cpu_time();
        let made = work();
        let time = cpu_time().saturating_sub(before);
        self.longest = self.longest.max(time);
        self.sum += time;
        made
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:6} ({})", self.longest.as_micros(), self.sum.as_millis())
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn plain(make: Make, size: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        make(state)
    };
    (0..size).map(|_| next()).collect()
}

fn inflate(coding: Coding, packed: Bytes) -> Times {
    let mut times = Times::default();
    let mut output = vec![0; INFLATE_OUTPUT_SLICE];
    let mut inflation = times.measure(|| Inflation::new(coding, packed)).expect("the body is not empty");
    while !times.measure(|| inflation.step(&mut output)).expect("the body is whole").1 {}
    times
}

fn deflate(coding: Coding, level: DeflateLevel, plain: &[u8]) -> Times {
    let mut times = Times::default();
    let parts = vec![Bytes::copy_from_slice(plain)];
    let mut deflation = None;
    loop {
        let is_done = times.measure(|| {
            let deflation = deflation.get_or_insert_with(|| Deflation::new(coding, level, parts.clone()));
            deflation.as_mut().expect("there is memory").step().expect("there is memory")
        });
        if is_done {
            return times;
        }
    }
}

fn packed(coding: Coding, level: DeflateLevel, plain: &[u8]) -> Bytes {
    let mut deflation = Deflation::new(coding, level, vec![Bytes::copy_from_slice(plain)]).expect("there is memory");
    while !deflation.step().expect("there is memory") {}
    deflation.into_parts().concat().into()
}

/// Frames of zstd at its slowest level, with a block for each `size` bytes.
fn flushed(plain: &[u8], size: usize) -> Bytes {
    use zstd_safe::zstd_sys::ZSTD_EndDirective::{ZSTD_e_end, ZSTD_e_flush};
    let mut context = zstd_safe::CCtx::create();
    context.set_parameter(zstd_safe::CParameter::CompressionLevel(19)).expect("zstd has the level");
    let mut packed = Vec::new();
    let mut block = vec![0; 4 * size + 1_024];
    let mut chunks = plain.chunks(size).peekable();
    while let Some(chunk) = chunks.next() {
        let directive = if chunks.peek().is_some() { ZSTD_e_flush } else { ZSTD_e_end };
        let mut output = zstd_safe::OutBuffer::around(&mut block[..]);
        let mut input = zstd_safe::InBuffer::around(chunk);
        context.compress_stream2(&mut output, &mut input, directive).expect("the block has room");
        packed.extend_from_slice(output.as_slice());
    }
    packed.into()
}

/// A stream of DEFLATE (RFC 1951) whose blocks have code tables of their own and one byte each.
fn tables() -> Bytes {
    let mut bits = Bits::default();
    let blocks = BLOCKS_SIZE / 20;
    for index in 0..blocks {
        bits.put(u32::from(index + 1 == blocks), 1);
        bits.put(2, 2);
        // 257 lengths of literals, 1 of a distance, 18 lengths of the code of lengths.
        bits.put(0, 5);
        bits.put(0, 5);
        bits.put(14, 4);
        // In the order 16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1: 18 and 1 have a code of one bit.
        for position in 0..18 {
            bits.put(u32::from(position == 2 || position == 17), 3);
        }
        // Lengths: 97 times 0, 1 for `a`, 138 and 20 times 0, 1 for the end; 1 for the distance. 1 is `0`, 18 is `1`.
        bits.put_zeros(97);
        bits.put(0, 1);
        bits.put_zeros(138);
        bits.put_zeros(20);
        bits.put(0, 1);
        bits.put(0, 1);
        // `a` and the end.
        bits.put(0, 1);
        bits.put(1, 1);
    }
    bits.finish()
}

/// Bits, the lowest of a byte first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    count: usize,
}

impl Bits {
    fn put(&mut self, value: u32, count: usize) {
        for bit in 0..count {
            if self.count.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let byte = self.bytes.last_mut().expect("one was pushed");
            *byte |= u8::from(value >> bit & 1 == 1) << (self.count % 8);
            self.count += 1;
        }
    }

    /// The code that repeats a length of 0.
    fn put_zeros(&mut self, times: u32) {
        self.put(1, 1);
        self.put(times - 11, 7);
    }

    fn finish(self) -> Bytes {
        self.bytes.into()
    }
}
