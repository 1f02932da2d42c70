//! Who surely has room in all its limits, its rate among them, and who holds what it must not.

use super::*;

/// Whether the rate of somebody surely lets it start.
pub(crate) type IsOpen<'a> = &'a dyn Fn(Words) -> bool;

impl Shadow {
    /// Somebody who may start now and has room in every limit, whoever stands first: the limits of the action
    /// and of its group by what holders take of them, and its rate by what `is_open` says.
    pub(crate) fn has_room_and_waits(
        &self,
        now: Millis,
        action: ActionId,
        is_open: IsOpen<'_>,
    ) -> Option<ExecutionId> {
        if !self.is_grouped(action) {
            return None;
        }
        let goes_on = self.rows.iter().find(|(_, seen)| {
            let is_due = seen.kept.is_some_and(|until| until <= now);
            seen.action == action && is_due && !seen.asked && is_open(seen.words)
        });
        if let Some((id, _)) = goes_on {
            return Some(*id);
        }
        let rule = self.bounds.get(&action).map(|limits| limits.order);
        let rule = rule.unwrap_or_default();
        let (grouping, is_keyed) = (self.grouping(action), self.has_keyed_rate(action));
        let waiting: Vec<_> = self.eligible(now, action).collect();
        // Those of a line are given slots one after the other, whatever others do.
        let line = |seen: &Seen| {
            let flow = grouping.shares.flow(grouping, seen.words);
            let rate = seen.words.user().filter(|_| is_keyed);
            (grouping.group(seen.words), flow, rate)
        };
        let lines: BTreeSet<_> = waiting.iter().map(|(_, seen)| line(seen)).collect();
        let heads = lines.into_iter().map(|of| {
            let same = waiting.iter().copied().filter(|(_, seen)| line(seen) == of);
            let heads = self.heads(rule, &same.collect::<Vec<_>>(), of.0);
            (of.0, heads)
        });
        let heads: Vec<_> = heads.collect();
        // Whoever has waited too long ends before anybody behind it is given a slot, and that takes rounds.
        let mut candidates = heads.iter().flat_map(|(_, heads)| heads);
        if candidates.any(|(_, head)| self.has_waited_too_long(now, head)) {
            return None;
        }
        // Who lacks room in its group holds up nobody of another. Of the others each may be the first.
        let may_fit = |(_, head): &(ExecutionId, &Seen)| self.has_room(head, true);
        let mut candidates = heads.iter().flat_map(|(_, heads)| heads);
        if !candidates.all(|head| !may_fit(head) || self.has_room(head.1, false)) {
            return None;
        }
        // A dear one of another line may be the first of a group, and then nobody of it passes.
        let group_fits = |group: Group| {
            let mut of_group = heads.iter().filter(|(it, _)| *it == group);
            of_group.all(|(_, heads)| heads.iter().all(may_fit))
        };
        let open = heads.iter().filter(|(_, heads)| {
            let mut heads = heads.iter();
            heads.all(|(_, head)| is_open(head.words) && self.has_room(head, false))
        });
        let mut sure = open.filter(|(group, _)| group_fits(*group));
        sure.find_map(|(_, heads)| heads.first().map(|(id, _)| *id))
    }

    /// Whether somebody who waits has no right to a slot any more.
    fn has_waited_too_long(&self, now: Millis, seen: &Seen) -> bool {
        let most = self.bounds.get(&seen.action).map_or(0, longest_wait);
        let since = seen.since.max(self.hold_of(seen.action).waits_from);
        seen.may_expire(now) && since.saturating_add(most) <= now
    }
}
