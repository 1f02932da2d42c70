//! The only source of chance in a run: SplitMix64, a few lines that will never change under us.

/// A stream of numbers that one seed decides.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The stream of a seed; neighbouring seeds give unrelated streams.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    ///
    /// # Panics
    /// When `high` is below `low`.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        let width = u64::try_from(high - low).expect("the bounds are in order") + 1;
        low + i64::try_from(self.bits() % width).expect("it is below the width")
    }

    /// An index into something with `count` places.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.bits() % count.max(1) as u64).unwrap_or(0)
    }

    /// True `per_mille` times out of a thousand.
    pub(crate) fn chance(&mut self, per_mille: u32) -> bool {
        self.bits() % 1000 < u64::from(per_mille)
    }

    /// One of these.
    ///
    /// # Panics
    /// When there are none.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }
}
