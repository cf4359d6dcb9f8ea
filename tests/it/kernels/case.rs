//! The grid that kernels are run over, emulated or on a GPU: shapes, datatypes, ties, NaN; the answers of the CPU
//! twins; and the comparison. Outputs are poisoned, so that bytes that a kernel does not write show. Inputs must come
//! back unchanged.

use deuteron::backend::kernel::{BufferRole, LaunchPlan};

/// Launches, the memory that they work on, and its expected contents afterwards.
pub struct Case {
    pub label: String,
    pub plan: LaunchPlan,
    pub buffers: Vec<Buffer>,
}

/// A buffer with its contents before and after.
pub struct Buffer {
    pub role: BufferRole,
    pub before: Vec<u8>,
    pub after: After,
}

/// Expected contents of a buffer at the end.
pub enum After {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Elements of a float format: equal, or both NaN, or closer than this part of the larger one or of 1.
    Floats(Float, Vec<f32>, f32),
    /// Anything.
    Scratch,
}

/// Format of a buffer's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    Fp16,
    Bf16,
    Fp32,
}

pub const POISON: u8 = 0xa5;

impl Case {
    /// A case without buffers except its scratch.
    pub fn new(label: String, plan: LaunchPlan) -> Self {
        let mut case = Self { label, plan, buffers: Vec::new() };
        if case.plan.scratch_size > 0 {
            let before = vec![POISON; case.plan.scratch_size];
            case.buffers.push(Buffer { role: BufferRole::Scratch, before, after: After::Scratch });
        }
        case
    }

    /// Adds a buffer that is read.
    pub fn reads(mut self, role: BufferRole, contents: Vec<u8>) -> Self {
        self.buffers.push(Buffer { role, after: After::Bytes(contents.clone()), before: contents });
        self
    }

    /// Adds a buffer that is written.
    pub fn writes(mut self, role: BufferRole, after: After) -> Self {
        let size = match &after {
            After::Bytes(bytes) => bytes.len(),
            After::Floats(float, values, _) => float.size() * values.len(),
            After::Scratch => 0,
        };
        self.buffers.push(Buffer { role, before: vec![POISON; size], after });
        self
    }

    /// Panics if the results differ from the twin's.
    pub fn check(&self, got: &[Vec<u8>]) {
        assert_eq!(got.len(), self.buffers.len(), "{}", self.label);
        for (buffer, got) in self.buffers.iter().zip(got) {
            let difference = match &buffer.after {
                After::Scratch => None,
                After::Bytes(want) => (got != want).then(|| {
                    let at = got.iter().zip(want).position(|(got, want)| got != want);
                    let near = at.unwrap_or(got.len().min(want.len()));
                    let window = |bytes: &[u8]| bytes[near..bytes.len().min(near + 16)].to_vec();
                    format!("{} bytes, from {near} {:x?} and not {:x?}", got.len(), window(got), window(want))
                }),
                After::Floats(float, want, tolerance) => float.difference(got, want, *tolerance),
            };
            assert!(difference.is_none(), "{}, {:?}: {}", self.label, buffer.role, difference.unwrap_or_default());
        }
    }
}

impl Float {
    pub const ALL: [Self; 3] = [Self::Fp16, Self::Bf16, Self::Fp32];

    pub fn datatype(self) -> deuteron::tensor::Datatype {
        match self {
            Self::Fp16 => deuteron::tensor::Datatype::Fp16,
            Self::Bf16 => deuteron::tensor::Datatype::Bf16,
            Self::Fp32 => deuteron::tensor::Datatype::Fp32,
        }
    }

    pub fn size(self) -> usize {
        self.datatype().size().expect("floats have a size")
    }

    /// The bytes of the nearest values of this format.
    pub fn bytes(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::Fp16 => values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect(),
            Self::Fp32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    pub fn values(self, bytes: &[u8]) -> Vec<f32> {
        let narrow = |chunk: &[u8]| [chunk[0], chunk[1]];
        match self {
            Self::Fp16 => bytes.chunks(2).map(|chunk| half::f16::from_le_bytes(narrow(chunk)).to_f32()).collect(),
            Self::Bf16 => bytes.chunks(2).map(|chunk| half::bf16::from_le_bytes(narrow(chunk)).to_f32()).collect(),
            Self::Fp32 => bytes.chunks(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect(),
        }
    }

    /// Half of the distance between two values of this format near 1.
    pub fn rounding(self) -> f32 {
        match self {
            Self::Fp16 => 1.0 / 2048.0,
            Self::Bf16 => 1.0 / 256.0,
            Self::Fp32 => 1.0 / 16_777_216.0,
        }
    }

    fn difference(self, got: &[u8], want: &[f32], tolerance: f32) -> Option<String> {
        let got = self.values(got);
        assert_eq!(got.len(), want.len());
        let at = got.iter().zip(want).position(|(got, want)| {
            let is_same = got == want || got.is_nan() && want.is_nan();
            // Written so that NaN is not a match.
            let is_near = (got - want).abs() <= tolerance * want.abs().max(1.0);
            !is_same && !is_near
        })?;
        Some(format!("{:e} and not {:e} at {at}", got[at], want[at]))
    }
}

/// Numbers that look random and are the same in every run (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn bytes(&mut self, size: usize) -> Vec<u8> {
        (0..size.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(size).collect()
    }

    /// Values of a normal distribution around 0, with a few special ones.
    pub fn values(&mut self, count: usize) -> Vec<f32> {
        const SPECIAL: [f32; 8] =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e30, -1e30];
        let mut value = || match self.below(40) {
            0 => SPECIAL[self.below(SPECIAL.len())],
            _ => (0..4).map(|_| self.next() as u32 as f32 / u32::MAX as f32 - 0.5).sum::<f32>() * 4.0,
        };
        (0..count).map(|_| value()).collect()
    }
}
