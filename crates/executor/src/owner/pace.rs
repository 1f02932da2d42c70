//! How many executions a page of a bulk operation has, so that nobody else waits long for its round.
//!
//! What one execution costs the store differs from machine to machine, from operation to operation and with
//! the bytes that it carries, so it is not set but seen: from the time that a page's round took follows how many
//! the next page of the same operation may have, at most twice as many and at least half. A store that needs
//! long for any round is given pages that are worth it; where nobody else has work there is nothing to compare
//! with, and pages grow for as long as they take less than a second.
//!
//! Others need more than rounds: their workers write too, and database, broker and workers may share
//! processors with the owner. So while others have work the owner rests after each page, for three quarters of what
//! its round took.

use std::collections::BTreeMap;

use attune_core::OperationId;

use crate::queue::Millis;

/// A round with a page may take as long as this, in milliseconds, however quick the others are.
const UNFELT: f64 = 8.0;
/// Likewise, in rounds without a page.
const ROUNDS: f64 = 2.0;
/// It is never meant to take longer than this, unless other rounds do.
const LONGEST: f64 = 1_000.0;
/// A page is never smaller than this, unless there is no more to do or the store has refused as many.
const LEAST: usize = 16;
/// The first page of an operation: nothing is known of it yet.
const FIRST: usize = 32;
/// How long the owner rests after a page while others have work, as a share of what its round took: in quarters.
const REST_QUARTERS: Millis = 3;
/// Others have work if a round without a page was written no longer before a page's round than this, in milliseconds.
const RECENT: Millis = 1_000;
/// How much one round counts for what is usual.
const WEIGHT: f64 = 1.0 / 8.0;
/// After so many pages of a size that the store takes, twice as many are tried again although it has refused
/// them once: the reason may have been another.
const TAKEN: u32 = 8;

/// How many executions a page of one operation may have.
#[derive(Debug, Clone, Copy)]
struct Size {
    rows: usize,
    /// What the store takes at most, as far as it has refused more, and how many such pages it has taken
    /// since.
    ceiling: Option<(usize, u32)>,
}

/// How long rounds take, with pages and without.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// What the next page of each open operation may have.
    sizes: BTreeMap<OperationId, Size>,
    /// The operation that the last page was of.
    last: Option<OperationId>,
    /// How long a round without a page takes, in milliseconds.
    usual: Option<f64>,
    /// The round that was decided last has a page.
    had_page: bool,
    /// When a round without a page was written last.
    others: Option<Millis>,
    /// No page is decided before this time.
    rests_until: Option<Millis>,
}

impl Size {
    fn first(most: usize) -> Self {
        Self {
            rows: FIRST.min(most),
            ceiling: None,
        }
    }

    /// A page took `took` milliseconds, and was meant to take `fits`.
    fn note(&mut self, took: f64, fits: f64, most: usize) {
        let factor = (fits / took.max(1.0)).clamp(0.5, 2.0);
        let least = LEAST.min(2 * self.rows);
        if let Some((ceiling, taken)) = &mut self.ceiling
            && self.rows == *ceiling
        {
            *taken += 1;
            if *taken == TAKEN {
                (*ceiling, *taken) = (2 * *ceiling, 0);
            }
        }
        self.ceiling.take_if(|(ceiling, _)| *ceiling >= most);
        let most = self.ceiling.map_or(most, |(ceiling, _)| ceiling.min(most));
        self.rows = ((self.rows as f64 * factor) as usize).max(least).min(most);
    }
}

impl Pace {
    /// How many executions the next page of an operation may have, `most` at most.
    pub(super) fn next_page(&mut self, operation: OperationId, most: usize) -> usize {
        self.last = Some(operation);
        self.size(operation, most).rows.min(most)
    }

    fn size(&mut self, operation: OperationId, most: usize) -> &mut Size {
        let size = self.sizes.entry(operation);
        size.or_insert_with(|| Size::first(most))
    }

    /// Whether a page may be decided now, together with what others want where they want anything: they
    /// have a round without a page after each.
    pub(super) fn is_turn(&self, others: bool) -> bool {
        !(others && self.had_page)
    }

    /// Whether the store and whoever else shares its machine are left to others for a while after a page.
    pub(super) fn is_resting(&mut self, now: Millis) -> bool {
        self.rests_until.take_if(|until| *until <= now);
        self.rests_until.is_some()
    }

    /// When the next page may be decided, if the last look found that it may not yet.
    pub(super) fn rests_until(&self) -> Option<Millis> {
        self.rests_until
    }

    /// A round was decided, with a page or without.
    pub(super) fn decided(&mut self, page: bool) {
        self.had_page = page;
    }

    /// A round that took `took` milliseconds was written by `now`; `is_page` says whether it had a page.
    pub(super) fn note(&mut self, now: Millis, took: Millis, is_page: bool, most: usize) {
        if !is_page {
            self.others = Some(now);
            let usual = self.usual.get_or_insert(took as f64);
            *usual += WEIGHT * (took as f64 - *usual);
            return;
        }
        let fits = self.usual.map_or(LONGEST, |usual| {
            (ROUNDS * usual).max(UNFELT).min(LONGEST.max(usual))
        });
        let have_others_work = self.others.is_some_and(|at| now <= at + took + RECENT);
        self.rests_until = have_others_work.then_some(now + took * REST_QUARTERS / 4);
        if let Some(operation) = self.last {
            self.size(operation, most).note(took as f64, fits, most);
        }
    }

    /// A round was decided that needs nothing written; a page of it was about nobody, and cost next to nothing.
    pub(super) fn note_unwritten(&mut self, now: Millis, most: usize) {
        if self.had_page {
            self.note(now, 0, true, most);
        }
    }

    /// The store has refused a page of an operation: it may be too large for the time that a statement may take,
    /// and a smaller one may not be.
    pub(super) fn refused(&mut self, operation: OperationId, most: usize) {
        let size = self.size(operation, most);
        if size.rows > LEAST {
            size.ceiling = Some((size.rows / 2, 0));
            size.rows = LEAST;
        } else {
            (size.ceiling, size.rows) = (Some((1, 0)), 1);
        }
    }

    /// No operation is open any more.
    pub(super) fn forget(&mut self) {
        self.sizes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1_000;
    const ONE: OperationId = OperationId(1);

    /// The size of pages after many rounds by turns, where a round takes `base` and each execution of
    /// a page `each`, in milliseconds.
    fn settles_at(base: f64, each: f64) -> usize {
        let mut pace = Pace::default();
        for _ in 0..50 {
            pace.note(0, base as Millis, false, MOST);
            let page = base + each * pace.next_page(ONE, MOST) as f64;
            pace.note(0, page as Millis, true, MOST);
        }
        pace.next_page(ONE, MOST)
    }

    #[test]
    fn a_page_takes_no_longer_than_others_may_wait() {
        // 40 µs for each: 8 ms have room for 125 beside a round of 3 ms, twice 20 ms for 500.
        let quick = settles_at(3.0, 0.04);
        assert!((110..=140).contains(&quick), "{quick}");
        let slow = settles_at(20.0, 0.04);
        assert!((400..=510).contains(&slow), "{slow}");
        assert_eq!(settles_at(3.0, 0.002), MOST, "it costs next to nothing");
        assert_eq!(settles_at(3.0, 100.0), LEAST, "however dear it is");
    }

    #[test]
    fn where_nobody_else_has_work_pages_grow_while_they_are_quick() {
        let mut pace = Pace::default();
        assert_eq!(pace.next_page(ONE, MOST), FIRST);
        for rows in [64, 128, 256, 512, MOST] {
            pace.note(0, 400, true, MOST);
            assert_eq!(pace.next_page(ONE, MOST), rows);
        }
        assert_eq!(pace.next_page(ONE, 4), 4, "no more than is allowed");
        // Executions of a megabyte: 19 ms for each, however alone it is.
        let mut pace = Pace::default();
        for _ in 0..20 {
            let rows = pace.next_page(ONE, MOST);
            assert!(rows <= 64, "{rows} would take longer than a second");
            pace.note(0, 19 * rows as Millis, true, MOST);
        }
    }

    #[test]
    fn each_operation_begins_with_small_pages() {
        let mut pace = Pace::default();
        for _ in 0..10 {
            pace.next_page(ONE, MOST);
            pace.note(0, 1, true, MOST);
        }
        assert_eq!(pace.next_page(ONE, MOST), MOST);
        assert_eq!(pace.next_page(OperationId(2), MOST), FIRST);
        pace.forget();
        assert_eq!(pace.next_page(ONE, MOST), FIRST);
    }

    #[test]
    fn what_the_store_refuses_comes_again_in_small_pages_that_grow() {
        let mut pace = Pace::default();
        for rows in [32, 64, 128] {
            assert_eq!(pace.next_page(ONE, MOST), rows);
            pace.note(0, 1, true, MOST);
        }
        assert_eq!(pace.next_page(ONE, MOST), 256);
        pace.refused(ONE, MOST);
        for rows in [16, 32, 64, 128] {
            assert_eq!(pace.next_page(ONE, MOST), rows);
            pace.note(0, 1, true, MOST);
        }
        // 256 were refused: they are tried again when half of that was taken often enough.
        for _ in 1..TAKEN {
            assert_eq!(pace.next_page(ONE, MOST), 128);
            pace.note(0, 1, true, MOST);
        }
        assert_eq!(pace.next_page(ONE, MOST), 256);
        // Whatever the reason is why the store takes nothing: it does not go on by ones for ever after.
        for _ in 0..5 {
            pace.refused(ONE, MOST);
        }
        assert_eq!(pace.next_page(ONE, MOST), 1);
        let mut pages = 0;
        while pace.next_page(ONE, MOST) < MOST {
            pace.note(0, 1, true, MOST);
            pages += 1;
        }
        assert!(pages <= 10 * (TAKEN + 1), "{pages}");
    }

    #[test]
    fn the_owner_rests_after_a_page_while_others_have_work() {
        let mut pace = Pace::default();
        pace.note(1_000, 5, true, MOST);
        assert!(!pace.is_resting(1_000), "nobody else has had work");
        pace.note(2_000, 3, false, MOST);
        pace.note(3_008, 8, true, MOST);
        assert!(pace.is_resting(3_013));
        assert_eq!(pace.rests_until(), Some(3_014));
        assert!(!pace.is_resting(3_014));
        assert_eq!(pace.rests_until(), None);
        pace.note(3_018, 9, true, MOST);
        assert!(!pace.is_resting(3_018), "others have had none for long");
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
