//! How many executions a page of a bulk operation has, so that nobody else waits long for its round.
//!
//! What one execution costs the store differs from machine to machine and from operation to operation, so
//! it is not set but seen: from the time that a page's round took follows how many the next page may have, at
//! most twice as many and at least half. A store that needs long for any round is given pages that are worth
//! it; where nobody else has work there is nothing to compare with, and pages are as large as they may be.

use crate::queue::Millis;

/// A round with a page may take as long as this, in milliseconds, however quick the others are.
const UNFELT: f64 = 12.0;
/// Likewise, in rounds without a page.
const ROUNDS: f64 = 2.0;
/// A page is never smaller than this, unless there is no more to do.
const LEAST: usize = 16;
/// The first page has so much less than the largest one: nothing is known yet.
const FIRST: usize = 8;
/// How much one round counts for what is usual.
const WEIGHT: f64 = 1.0 / 8.0;

/// How long rounds take, with pages and without.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// What the next page may have; nothing where none came yet.
    rows: Option<usize>,
    /// What the store takes at most, as far as it has refused more.
    ceiling: Option<usize>,
    /// How long a round without a page takes, in milliseconds.
    usual: Option<f64>,
    /// The round that was decided last has a page.
    had_page: bool,
}

impl Pace {
    /// How many executions the next page may have, `most` at most.
    pub(super) fn rows(&self, most: usize) -> usize {
        let first = (most / FIRST).max(LEAST);
        self.rows.unwrap_or(first).min(most)
    }

    /// Whether a page may be decided now, together with what others want where they want anything: they
    /// have a round without a page after each.
    pub(super) fn is_turn(&self, others: bool) -> bool {
        !(others && self.had_page)
    }

    /// A round was decided, with a page or without.
    pub(super) fn decided(&mut self, page: bool) {
        self.had_page = page;
    }

    /// A round was written in `took` milliseconds; `is_page` says whether it had a page, of which
    /// [`Pace::rows`] were allowed.
    pub(super) fn note(&mut self, took: Millis, is_page: bool, most: usize) {
        let took = took as f64;
        if !is_page {
            let usual = self.usual.get_or_insert(took);
            *usual += WEIGHT * (took - *usual);
            return;
        }
        let rows = self.rows(most);
        let fits = self
            .usual
            .map_or(f64::MAX, |usual| (ROUNDS * usual).max(UNFELT));
        let factor = (fits / took.max(1.0)).clamp(0.5, 2.0);
        let least = LEAST.min(2 * rows);
        let most = self.ceiling.unwrap_or(most).min(most);
        self.rows = Some(((rows as f64 * factor) as usize).max(least).min(most));
    }

    /// A round was decided that needs nothing written; a page of it was about nobody, and cost next to nothing.
    pub(super) fn note_unwritten(&mut self, most: usize) {
        if self.had_page {
            self.note(0, true, most);
        }
    }

    /// The store has refused a page again and again: it may be too large for the time that a statement may
    /// take, and a smaller one may not be.
    pub(super) fn refused(&mut self, most: usize) {
        let rows = self.rows(most);
        self.rows = Some(if rows > LEAST { LEAST } else { 1 });
        self.ceiling = Some((rows / 2).max(1));
    }

    /// No operation is open any more: what the store refuses of the next one is another matter.
    pub(super) fn forget_refusals(&mut self) {
        self.ceiling = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1_000;

    /// The size of pages after many rounds by turns, where a round takes `base` and each execution of
    /// a page `each`, in milliseconds.
    fn settles_at(base: f64, each: f64) -> usize {
        let mut pace = Pace::default();
        for _ in 0..50 {
            pace.note(base as Millis, false, MOST);
            let page = base + each * pace.rows(MOST) as f64;
            pace.note(page as Millis, true, MOST);
        }
        pace.rows(MOST)
    }

    #[test]
    fn a_page_takes_no_longer_than_others_may_wait() {
        // 40 µs for each: 12 ms have room for 225 beside a round of 3 ms, twice 20 ms for 500.
        let quick = settles_at(3.0, 0.04);
        assert!((200..=250).contains(&quick), "{quick}");
        let slow = settles_at(20.0, 0.04);
        assert!((400..=510).contains(&slow), "{slow}");
        assert_eq!(settles_at(3.0, 0.002), MOST, "it costs next to nothing");
        assert_eq!(settles_at(3.0, 100.0), LEAST, "however dear it is");
    }

    #[test]
    fn where_nobody_else_has_work_pages_are_large() {
        let mut pace = Pace::default();
        assert_eq!(pace.rows(MOST), MOST / FIRST);
        for _ in 0..3 {
            pace.note(500, true, MOST);
        }
        assert_eq!(pace.rows(MOST), MOST);
        assert_eq!(pace.rows(4), 4, "no more than is allowed");
    }

    #[test]
    fn what_the_store_refuses_comes_again_in_small_pages_that_grow() {
        let mut pace = Pace::default();
        pace.refused(MOST);
        assert_eq!(pace.rows(MOST), LEAST);
        pace.refused(MOST);
        assert_eq!(pace.rows(MOST), 1);
        for rows in [2, 4, 8, 8] {
            pace.note(1, true, MOST);
            assert_eq!(pace.rows(MOST), rows, "16 were refused");
        }
        pace.forget_refusals();
        pace.note(1, true, MOST);
        assert_eq!(pace.rows(MOST), 16);
    }

    #[test]
    fn others_have_a_round_after_each_page() {
        let mut pace = Pace::default();
        assert!(pace.is_turn(true));
        pace.decided(true);
        assert!(!pace.is_turn(true));
        assert!(pace.is_turn(false), "nobody else wants anything");
        pace.decided(false);
        assert!(pace.is_turn(true));
    }
}
