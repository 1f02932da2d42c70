//! Whose turn it is where slots are shared, found by looking through everything.

use super::*;
use crate::shares::{Sharer, Shares};

impl Shadow {
    /// Whether it is not a matter of turns which of two goes first: slots are not shared, or both are of
    /// one flow and one group.
    pub(super) fn is_same_line(&self, one: &Seen, other: &Seen) -> bool {
        let grouping = self.grouping(one.action);
        let line = |seen: &Seen| {
            let flow = grouping.shares.flow(grouping, seen.words);
            (flow, grouping.group(seen.words))
        };
        grouping.shares == Shares::None || line(one) == line(other)
    }

    /// Judges a grant where slots are shared: nobody was passed whose turn it surely was.
    pub(super) fn judge_turn(
        &self,
        rule: OrderRule,
        waiting: &[(ExecutionId, &Seen)],
        granted: (ExecutionId, &Seen),
        out: &mut Vec<Violation>,
    ) {
        let (id, seen) = granted;
        let grouping = self.grouping(seen.action);
        // Others may have used up their rate.
        if grouping.shares == Shares::None || self.has_keyed_rate(seen.action) {
            return;
        }
        let lane = |seen: &Seen| (!seen.front).then_some(seen.priority);
        let rivals = waiting.iter().filter(|(other, it)| {
            *other != id
                && self.is_surely_first(rule, waiting, (*other, it))
                && self.all_fit(waiting, it)
        });
        for (other, it) in rivals {
            if lane(it) != lane(seen) {
                // A lane has its turn by its oldest.
                let mut mates = waiting.iter().filter(|(_, mate)| lane(mate) == lane(seen));
                if mates.all(|mate| is_before(rule, (*other, it), *mate)) {
                    let words =
                        format!("{id} is granted a slot, and {other} is of an earlier lane");
                    out.push(Violation::of(Promise::I3, words));
                }
            } else if seen.front {
                if *other < id {
                    let words =
                        format!("{id} is granted a slot before {other}, which is in front of it");
                    out.push(Violation::of(Promise::I3, words));
                }
            } else if let Some(words) = self.has_more(seen, it) {
                let words =
                    format!("{id} is granted a slot, and it is the turn of {other}: {words}");
                out.push(Violation::of(Promise::I10, words));
            }
        }
    }

    /// Whether nobody may stand before somebody in its line.
    fn is_surely_first(
        &self,
        rule: OrderRule,
        waiting: &[(ExecutionId, &Seen)],
        (id, seen): (ExecutionId, &Seen),
    ) -> bool {
        let mut mates = waiting
            .iter()
            .filter(|(other, it)| *other != id && self.is_same_line(it, seen));
        mates.all(|mate| is_before(rule, (id, seen), *mate))
    }

    /// Whether all who wait in a group have room in it together.
    fn all_fit(&self, waiting: &[(ExecutionId, &Seen)], of: &Seen) -> bool {
        let grouping = self.grouping(of.action);
        let group = grouping.group(of.words);
        let same = waiting.iter().map(|(_, seen)| seen.words);
        let same = same.filter(|words| grouping.group(*words) == group);
        let want: u64 = same.map(|words| grouping.cost(words)).sum();
        let limits = self.bounds.get(&of.action);
        let limit = limits.and_then(|limits| limits.group_limit());
        limit.is_none_or(|limit| self.used(of.action, Some(group)) + want <= u64::from(limit))
    }

    /// Whether the flow of one holds more for its weight than that of another, on the highest level on which
    /// they differ.
    fn has_more(&self, one: &Seen, other: &Seen) -> Option<String> {
        let grouping = self.grouping(one.action);
        let flow = |seen: &Seen| grouping.shares.flow(grouping, seen.words);
        let (its, others) = (flow(one), flow(other));
        let level = (0..its.len()).find(|level| its[*level] != others[*level])?;
        let holds = |way: &[Sharer]| -> u64 {
            let holders = self.rows.values();
            let holders = holders.filter(|seen| seen.action == one.action && seen.holds);
            let same = holders.filter(|seen| flow(seen).starts_with(way));
            same.map(|seen| grouping.cost(seen.words)).sum()
        };
        let (mine, theirs) = (holds(&its[..=level]), holds(&others[..=level]));
        let weights = (its[level].weight(), others[level].weight());
        (mine * weights.1 > theirs * weights.0).then(|| {
            format!(
                "{:?} holds {mine}, {:?} {theirs}",
                its[level], others[level]
            )
        })
    }
}
