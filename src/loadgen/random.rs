//! Pseudorandom numbers: the same seed gives the same load. SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
//! number generators", 2014).

/// A generator of pseudorandom numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number from 0 to 1, 1 excluded.
    pub fn next_unit(&mut self) -> f64 {
        // 53 bits are what a double holds.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The next number below a bound; 0 if the bound is 0.
    pub const fn next_below(&mut self, bound: u64) -> u64 {
        // Multiply and shift instead of rejection: the bias is below bound / 2^64, too small to matter for a load.
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_paper() {
        let mut random = Random::new(1_234_567);
        let got: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(got, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_all_of_them() {
        let mut random = Random::new(7);
        let mut seen = [0_u32; 10];
        for _ in 0..1000 {
            seen[usize::try_from(random.next_below(10)).unwrap()] += 1;
            assert!((0.0..1.0).contains(&random.next_unit()));
        }
        assert!(seen.iter().all(|count| *count > 60), "{seen:?}");
        assert_eq!(random.next_below(0), 0);
    }
}
