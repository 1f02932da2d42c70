//! By which time owners decide: the store's, whatever clocks show for a while.

use std::collections::BTreeMap;

use crate::oracle::{Rule, Violation, WRONG_BY};
use crate::owner::BOOT;
use crate::plan::Time;
use crate::world::{WALL, World};

/// How far ahead a clock that stands still leads an owner at most, which sees it fall behind little by little.
const AHEAD_BY: Time = 15_000;
/// So little ahead is as good as right, and of more than this nobody can say which clock is: it is not followed.
const RIGHT: Time = 300;
const DRIFT: Time = 4_900;
/// After that an owner that is ahead has seen it and comes back, by this part of what passes at least.
const SEEN_AFTER: Time = 5_000;
const PACE: Time = 4;

/// Since when each owner is ahead of the time while nothing is wrong, and by how much it was then, by the
/// number of the owner and which of its lives it is.
#[derive(Debug, Default)]
pub(crate) struct Clocks(BTreeMap<usize, (u32, Time, Time)>);

impl World {
    /// By which time an owner decides: hardly by one to come, and by one that has passed only while it cannot
    /// know better.
    pub(crate) fn judge_clock(&mut self, o: usize) {
        let owner = &self.owners[o];
        let wrong = owner.wall(self.now) - (WALL + owner.clock(self.now) - BOOT - owner.skew);
        let may_be_early = self.lasting.is_in_doubt(owner.id());
        if wrong > AHEAD_BY || (wrong < -WRONG_BY && !may_be_early) {
            let words = format!("the time by which an owner decides is wrong by {wrong} ms");
            self.oracle
                .blame(self.now, Violation::of(Rule::Clock, words));
        }
    }

    /// Whoever was led ahead comes back once the clocks are right again.
    pub(crate) fn watch_clocks(&mut self, excused: bool) {
        for o in 0..self.owners.len() {
            let owner = &self.owners[o];
            let (life, ahead) = (owner.life(), owner.wall(self.now) - (WALL + self.now));
            let is_calm = !excused
                && owner.is_alive()
                && owner.is_on_time(self.now)
                && self.lasting.clock_is_off(self.now) == 0
                && !self.lasting.without_store(o, self.now);
            if !is_calm || !(RIGHT..DRIFT).contains(&ahead) {
                self.flow.clocks.0.remove(&o);
                continue;
            }
            let seen = self
                .flow
                .clocks
                .0
                .entry(o)
                .or_insert((life, self.now, ahead));
            if seen.0 != life {
                *seen = (life, self.now, ahead);
            }
            let (_, since, before) = *seen;
            let passed = self.now - since - SEEN_AFTER;
            if passed >= 0 && ahead > before - passed / PACE {
                let words = format!(
                    "an owner is {ahead} ms ahead of the time, as it was {before} ms at {since} ms, \
                     although all clocks are right since"
                );
                self.oracle
                    .blame(self.now, Violation::of(Rule::Clock, words));
            }
        }
    }
}
