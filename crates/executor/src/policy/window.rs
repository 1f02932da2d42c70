//! How many have started lately: a window that slides with the time, and never lets more than its limit
//! start in any stretch of its length.
//!
//! Of a small limit each start has its own time. Of a large one the starts of a sixty-fourth of the window
//! count as of the end of that slice, so they count a little longer than they must and never shorter.
//!
//! A start counts from when it is *stored*: until its commit is answered nobody knows when that is, so it
//! stands apart as fresh, and what a takeover finds so has the time at which it was written.

use std::collections::VecDeque;

use crate::queue::Millis;

/// At most so many starts in any stretch of so many milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate {
    /// How many.
    pub max: u32,
    /// In how long a time.
    pub window: Millis,
}

/// Into how many slices the window of a large limit is cut, and up to which limit each start has its own
/// time.
const SLICES: u32 = 64;
/// How many times are kept, whatever the limit was before: the oldest are taken together then.
const MOST_MARKS: usize = 2 * SLICES as usize + 2;

impl Rate {
    /// The time as of which a start counts that was stored at `at`.
    fn counted_at(self, at: Millis) -> Millis {
        if self.max <= SLICES {
            return at;
        }
        let slices = Millis::from(SLICES);
        let slice = ((self.window + slices - 1) / slices).max(1);
        at.div_euclid(slice)
            .saturating_add(1)
            .saturating_mul(slice)
            .saturating_sub(1)
    }
}

/// What has started lately.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// The times of starts and how many each has; rising.
    marks: VecDeque<(Millis, u32)>,
    /// How many have started in the round under way, whose commit was not answered.
    fresh: u32,
    /// When these were decided.
    fresh_at: Millis,
}

impl Window {
    /// From when on one more may start; the beginning of time where that is now, whenever now is.
    pub(crate) fn next_time(&self, rate: Rate) -> Millis {
        let Some(mut left) = rate.max.checked_sub(self.fresh).filter(|left| *left > 0) else {
            return self.fresh_at.saturating_add(rate.window);
        };
        for (time, count) in self.marks.iter().rev() {
            match left.checked_sub(*count).filter(|left| *left > 0) {
                Some(rest) => left = rest,
                None => return time.saturating_add(rate.window),
            }
        }
        Millis::MIN
    }

    /// Somebody starts.
    pub(crate) fn start(&mut self, rate: Rate, now: Millis) {
        let over = now.saturating_sub(rate.window);
        while self.marks.front().is_some_and(|(time, _)| *time <= over) {
            self.marks.pop_front();
        }
        self.fresh += 1;
        self.fresh_at = self.fresh_at.max(now);
    }

    /// Whether something has started whose commit was not answered.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh > 0
    }

    /// What has started in the round is stored, since `at` at the latest.
    pub(crate) fn settle(&mut self, rate: Rate, at: Millis) {
        let fresh = std::mem::take(&mut self.fresh);
        if fresh > 0 {
            self.mark(rate.counted_at(at.max(self.fresh_at)), fresh);
        }
    }

    fn mark(&mut self, at: Millis, count: u32) {
        match self.marks.back_mut() {
            Some((last, counted)) if at <= *last => *counted = counted.saturating_add(count),
            _ => self.marks.push_back((at, count)),
        }
        if self.marks.len() > MOST_MARKS
            && let Some((_, oldest)) = self.marks.pop_front()
            && let Some((_, second)) = self.marks.front_mut()
        {
            *second = second.saturating_add(oldest);
        }
    }

    /// From when on nothing of it counts any more.
    pub(crate) fn over_at(&self, rate: Rate) -> Millis {
        let last = self.marks.back().map_or(Millis::MIN, |(time, _)| *time);
        let fresh = if self.is_fresh() {
            self.fresh_at
        } else {
            Millis::MIN
        };
        last.max(fresh).saturating_add(rate.window)
    }

    /// As many have started as may, at `at`.
    pub(crate) fn used_up(rate: Rate, at: Millis) -> Self {
        Self {
            marks: VecDeque::from([(at, rate.max)]),
            ..Self::default()
        }
    }

    /// As it is stored with a round that is written down as of `ahead` milliseconds later than it was
    /// decided: each start by how long it was before the round.
    pub(crate) fn to_bytes(&self, ahead: Millis) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(13 + 8 * self.marks.len());
        bytes.push(FORM);
        bytes.extend(self.fresh.to_be_bytes());
        bytes.extend(self.fresh_at.saturating_add(ahead).to_be_bytes());
        for (time, count) in &self.marks {
            // 49 days fit, and no window is longer. What lies further ahead than a slice stays ahead.
            let before = self.fresh_at.saturating_sub(*time).saturating_add(TO_COME);
            let before = u32::try_from(before.max(0)).unwrap_or(u32::MAX);
            bytes.extend(before.to_be_bytes());
            bytes.extend(count.to_be_bytes());
        }
        bytes
    }

    /// Reads what another owner has written at `written_at` by the clock of the store; `None` where that
    /// cannot be read. How long ago each start was follows from when it was written: the clock of that
    /// owner may have been behind, and its round may have been written late. What is written down as of
    /// the future is another matter: see [`as_of`](Self::as_of).
    pub(crate) fn from_bytes(bytes: &[u8], written_at: Millis) -> Option<Self> {
        let (form, rest) = bytes.split_first()?;
        let (fresh, rest) = rest.split_first_chunk()?;
        let (round, mut rest) = rest.split_first_chunk()?;
        if *form != FORM {
            return None;
        }
        let round = Millis::from_be_bytes(*round).max(written_at);
        let mut window = Self::default();
        while !rest.is_empty() {
            let (before, after) = rest.split_first_chunk()?;
            let (count, after) = after.split_first_chunk()?;
            let before = Millis::from(u32::from_be_bytes(*before)) - TO_COME;
            window.mark(round.saturating_sub(before), u32::from_be_bytes(*count));
            rest = after;
        }
        let fresh = u32::from_be_bytes(*fresh);
        if fresh > 0 {
            window.mark(round, fresh);
        }
        Some(window)
    }
}

impl Window {
    /// Counts as of now what is written down as of the future, because it is past by every clock; tells what
    /// that is. Of two clocks that differ nobody knows which is right.
    pub(crate) fn as_of(&mut self, now: Millis) -> Vec<(Millis, u32)> {
        let past = self.marks.partition_point(|(time, _)| *time <= now);
        let ahead: Vec<_> = self.marks.split_off(past).into();
        for (_, count) in &ahead {
            self.mark(now, *count);
        }
        ahead
    }

    /// The clock has come to the time of what was counted as of `as_of`: it was behind then, and that counts
    /// as of when it was written down.
    pub(crate) fn put_right(&mut self, as_of: Millis, ahead: &[(Millis, u32)]) {
        let moved = ahead.iter().map(|(_, count)| count).sum();
        if let Some(index) = self.marks.iter().position(|(time, _)| *time == as_of) {
            let count = &mut self.marks[index].1;
            *count = count.saturating_sub(moved);
            if *count == 0 {
                self.marks.remove(index);
            }
        }
        for mark in ahead {
            let index = self.marks.partition_point(|(time, _)| *time <= mark.0);
            self.marks.insert(index, *mark);
        }
    }
}

/// The end of a slice may be to come by less than so many milliseconds.
const TO_COME: Millis = 1 << 26;

/// The form in which a window is stored.
const FORM: u8 = 1;

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
