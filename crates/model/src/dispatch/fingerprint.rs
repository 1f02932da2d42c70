//! By what states are told apart: a state, and the one with its two workers exchanged, are the same.

use std::hash::{Hash, Hasher};

use super::state::{Row, State};

/// Two sums at once, 128 bits: among ten million states two that are different have the same with a
/// chance of less than 1 in 10^24. No seed, so that each run visits the same states.
struct Sums(u64, u64);

impl Sums {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
        self.1 = (self.1.rotate_left(31) ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }

    fn both(&self) -> u128 {
        let mix = |sum: u64| {
            let once = (sum ^ (sum >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
            u128::from(once ^ (once >> 32))
        };
        (mix(self.0) << 64) | mix(self.1)
    }
}

impl Hasher for Sums {
    fn finish(&self) -> u64 {
        self.0 ^ self.1
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.add(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.add(word as u64);
    }
}

/// What a state has in common with its mirror image only.
pub(super) fn fingerprint(state: &State) -> u128 {
    let of = |state: &State| {
        let mut sums = Sums(0x0051_7cc1, 0x2f0b_4499);
        state.hash(&mut sums);
        sums.both()
    };
    of(state).min(of(&mirrored(state)))
}

/// The same with its two workers exchanged.
fn mirrored(state: &State) -> State {
    let mut other = state.clone();
    other.workers.swap(0, 1);
    other.closing.swap(0, 1);
    mirror_rows(&mut other.rows);
    for owner in &mut other.owners {
        owner.streams.swap(0, 1);
        mirror_rows(&mut owner.remembered);
    }
    for section in &mut other.sections {
        section.life = 1 - section.life;
    }
    for report in &mut other.reports {
        report.life = 1 - report.life;
    }
    other.sections.sort_unstable();
    other.reports.sort_unstable();
    other
}

fn mirror_rows(rows: &mut [Row]) {
    for row in rows {
        if let Row::Granted(_, life) = row {
            *life = 1 - *life;
        }
    }
}
