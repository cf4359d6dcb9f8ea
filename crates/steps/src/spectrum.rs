//! The spectra of frames of real numbers, in FP64: four frames at a time, each in its own lane, so that every operation of
//! the transform is one of vectors. Own code: the transforms of `rustfft` bring six packages and 20,000 lines, mostly for
//! vectors inside a single transform, for which frames leave no need.

use std::f64::consts::PI;

/// Frames that are transformed at once.
pub const FRAMES: usize = 4;

/// A number of each frame.
pub type Lane = [f64; FRAMES];

/// A complex number of each frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wave {
    pub real: Lane,
    pub imaginary: Lane,
}

/// The transform of frames of one size.
pub struct Spectrum {
    /// Half the size of a frame: pairs of its numbers are transformed as complex ones.
    half: usize,
    passes: Vec<SpectrumPass>,
    /// The roots of unity that take the transform of the pairs apart.
    roots: Vec<Root>,
}

/// Memory of a transform.
#[derive(Default)]
pub struct SpectrumRoom {
    first: Vec<Wave>,
    second: Vec<Wave>,
}

/// One pass of the transform (Stockham): `groups` groups of `radix` runs, each of `stride` numbers.
struct SpectrumPass {
    radix: usize,
    stride: usize,
    /// For each group, a root for each of its runs.
    roots: Vec<Root>,
    /// The roots of a transform of `radix` numbers.
    inner: Vec<Root>,
}

/// A complex root of unity.
#[derive(Clone, Copy, Debug, Default)]
struct Root {
    real: f64,
    imaginary: f64,
}

impl Spectrum {
    /// For frames of `size` numbers; `None` if that is odd or 0.
    pub fn new(size: usize) -> Option<Self> {
        if size == 0 || !size.is_multiple_of(2) {
            return None;
        }
        let half = size / 2;
        let (mut left, mut stride, mut passes) = (half, 1, Vec::new());
        while left > 1 {
            let radix = [4, 2, 3, 5].into_iter().chain(7..).find(|radix| left.is_multiple_of(*radix)).unwrap_or(left);
            let groups = left / radix;
            let roots = (0..groups).flat_map(|group| (0..radix).map(move |run| Root::new(group * run, left)));
            let inner = (0..radix).map(|run| Root::new(run, radix)).collect();
            passes.push(SpectrumPass { radix, stride, roots: roots.collect(), inner });
            (left, stride) = (groups, stride * radix);
        }
        let roots = (0..=half).map(|index| Root::new(index, size)).collect();
        Some(Self { half, passes, roots })
    }

    /// The count of numbers of a spectrum: frequencies from 0 to half the sample rate.
    pub const fn bin_count(&self) -> usize {
        self.half + 1
    }

    /// Gives each number of the spectra of frames to `each`, with its place. `frames` has all numbers of the frames by place;
    /// missing ones are 0. To be called inside [`crate::image::vector::vectorized`].
    #[inline(always)]
    pub fn run(&self, frames: &[Lane], room: &mut SpectrumRoom, mut each: impl FnMut(usize, Wave)) {
        let SpectrumRoom { first, second } = room;
        first.clear();
        let (pairs, last) = frames.as_chunks();
        first.extend(pairs.iter().map(|[real, imaginary]| Wave { real: *real, imaginary: *imaginary }));
        first.extend(last.iter().map(|real| Wave { real: *real, ..Wave::default() }));
        first.resize(self.half, Wave::default());
        second.resize(self.half, Wave::default());
        for pass in &self.passes {
            pass.run(first, second);
            std::mem::swap(first, second);
        }
        // The even numbers of a frame are the real parts, the odd ones the imaginary parts.
        for (index, root) in self.roots.iter().enumerate() {
            let at = |index: usize| first.get(if index == self.half { 0 } else { index }).copied().unwrap_or_default();
            let (left, right) = (at(index), at(self.half - index).conjugate());
            let (even, odd) = (left.plus(right), left.minus(right).turned());
            let sum = even.plus(odd.times(*root));
            each(index, sum.scaled(0.5));
        }
    }
}

impl SpectrumPass {
    #[inline(always)]
    fn run(&self, input: &[Wave], output: &mut [Wave]) {
        match self.radix {
            2 => self.each(input, output, |[a, b]| [a.plus(b), a.minus(b)]),
            3 => self.each(input, output, three),
            4 => self.each(input, output, four),
            5 => self.each(input, output, five),
            _ => self.any(input, output),
        }
    }

    #[inline(always)]
    fn each<const R: usize>(&self, input: &[Wave], output: &mut [Wave], transform: impl Fn([Wave; R]) -> [Wave; R]) {
        let (roots, _) = self.roots.as_chunks::<R>();
        let distance = input.len() / R;
        for (group, (output, roots)) in output.chunks_exact_mut(R * self.stride).zip(roots).enumerate() {
            for place in 0..self.stride {
                let start = group * self.stride + place;
                let mut waves = [Wave::default(); R];
                for (wave, from) in
                    waves.iter_mut().zip(input.get(start..).unwrap_or_default().iter().step_by(distance))
                {
                    *wave = *from;
                }
                let places = output.get_mut(place..).unwrap_or_default().iter_mut().step_by(self.stride);
                for ((to, wave), root) in places.zip(transform(waves)).zip(roots) {
                    *to = wave.times(*root);
                }
            }
        }
    }

    /// The same for any other radix.
    fn any(&self, input: &[Wave], output: &mut [Wave]) {
        let distance = input.len() / self.radix;
        let groups = output.chunks_exact_mut(self.radix * self.stride).zip(self.roots.chunks_exact(self.radix));
        for (group, (output, roots)) in groups.enumerate() {
            for place in 0..self.stride {
                let from = input.get(group * self.stride + place..).unwrap_or_default().iter().step_by(distance);
                let places = output.get_mut(place..).unwrap_or_default().iter_mut().step_by(self.stride);
                for ((run, to), root) in places.enumerate().zip(roots) {
                    let inner = |index| self.inner.get(index * run % self.radix).copied().unwrap_or_default();
                    let terms = from.clone().enumerate().map(|(index, wave)| wave.times(inner(index)));
                    *to = terms.fold(Wave::default(), Wave::plus).times(*root);
                }
            }
        }
    }
}

impl Root {
    /// The root `index` of `count`, clockwise.
    fn new(index: usize, count: usize) -> Self {
        let angle = -2.0 * PI * ((index % count) as f64 / count as f64);
        Self { real: angle.cos(), imaginary: angle.sin() }
    }
}

impl Wave {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Self {
            real: lanes(self.real, other.real, |a, b| a + b),
            imaginary: lanes(self.imaginary, other.imaginary, |a, b| a + b),
        }
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        Self {
            real: lanes(self.real, other.real, |a, b| a - b),
            imaginary: lanes(self.imaginary, other.imaginary, |a, b| a - b),
        }
    }

    #[inline(always)]
    fn times(self, root: Root) -> Self {
        Self {
            real: lanes(self.real, self.imaginary, |a, b| a * root.real - b * root.imaginary),
            imaginary: lanes(self.real, self.imaginary, |a, b| a * root.imaginary + b * root.real),
        }
    }

    #[inline(always)]
    fn scaled(self, by: f64) -> Self {
        Self { real: self.real.map(|value| value * by), imaginary: self.imaginary.map(|value| value * by) }
    }

    #[inline(always)]
    fn conjugate(self) -> Self {
        Self { real: self.real, imaginary: self.imaginary.map(|value| -value) }
    }

    /// Turned by a quarter, clockwise: multiplied by -i.
    #[inline(always)]
    fn turned(self) -> Self {
        Self { real: self.imaginary, imaginary: self.real.map(|value| -value) }
    }
}

#[inline(always)]
fn lanes(left: Lane, right: Lane, function: impl Fn(f64, f64) -> f64) -> Lane {
    let mut out = left;
    for (out, right) in out.iter_mut().zip(&right) {
        *out = function(*out, *right);
    }
    out
}

#[inline(always)]
fn three([a, b, c]: [Wave; 3]) -> [Wave; 3] {
    const SINE: f64 = 0.866_025_403_784_438_6;
    let (sum, turned) = (b.plus(c), b.minus(c).turned().scaled(SINE));
    let middle = a.minus(sum.scaled(0.5));
    [a.plus(sum), middle.plus(turned), middle.minus(turned)]
}

#[inline(always)]
fn four([a, b, c, d]: [Wave; 4]) -> [Wave; 4] {
    let (even, odd) = ([a.plus(c), a.minus(c)], [b.plus(d), b.minus(d).turned()]);
    let ([e, f], [g, h]) = (even, odd);
    [e.plus(g), f.plus(h), e.minus(g), f.minus(h)]
}

#[inline(always)]
fn five([a, b, c, d, e]: [Wave; 5]) -> [Wave; 5] {
    // The cosines and sines of one and two fifths of a turn.
    const COSINES: [f64; 2] = [0.309_016_994_374_947_45, -0.809_016_994_374_947_5];
    const SINES: [f64; 2] = [0.951_056_516_295_153_5, 0.587_785_252_292_473_1];
    let ([outer, inner], [outer_turned, inner_turned]) =
        ([b.plus(e), c.plus(d)], [b.minus(e).turned(), c.minus(d).turned()]);
    let first = a.plus(outer.scaled(COSINES[0])).plus(inner.scaled(COSINES[1]));
    let second = a.plus(outer.scaled(COSINES[1])).plus(inner.scaled(COSINES[0]));
    let first_turned = outer_turned.scaled(SINES[0]).plus(inner_turned.scaled(SINES[1]));
    let second_turned = outer_turned.scaled(SINES[1]).minus(inner_turned.scaled(SINES[0]));
    [
        a.plus(outer).plus(inner),
        first.plus(first_turned),
        second.plus(second_turned),
        second.minus(second_turned),
        first.minus(first_turned),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spectra_are_those_of_the_sum_over_all_numbers() {
        let mut state = 1_u64;
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / 16_777_216.0 - 0.5
        };
        for size in [2, 4, 6, 8, 10, 12, 14, 22, 30, 64, 66, 130, 400, 512, 480, 2 * 127] {
            let frames: Vec<Lane> = (0..size).map(|_| [number(), number(), number(), number()]).collect();
            let spectrum = Spectrum::new(size).unwrap();
            let mut count = 0;
            spectrum.run(&frames, &mut SpectrumRoom::default(), |index, wave| {
                for (lane, (real, imaginary)) in wave.real.into_iter().zip(wave.imaginary).enumerate() {
                    let sum = frames.iter().enumerate().fold((0.0, 0.0), |sum, (place, numbers)| {
                        let root = Root::new(index * place, size);
                        (sum.0 + numbers[lane] * root.real, sum.1 + numbers[lane] * root.imaginary)
                    });
                    let difference = (real - sum.0).abs() + (imaginary - sum.1).abs();
                    assert!(difference < 1e-13 * size as f64, "{size}, {index}: {difference:e}");
                }
                count += 1;
            });
            assert_eq!(count, spectrum.bin_count());
        }
        assert!(Spectrum::new(0).is_none() && Spectrum::new(25).is_none());
    }
}
