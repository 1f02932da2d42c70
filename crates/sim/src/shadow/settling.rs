//! What must be true when a round has done with its events, and whenever time has passed.

use attune_core::Moved;

use super::*;

impl Shadow {
    /// Whether its starts are counted for each of those for whom it runs.
    pub(super) fn has_keyed_rate(&self, action: ActionId) -> bool {
        let limits = self.bounds.get(&action);
        let rate = limits.and_then(QueueLimits::rate);
        rate.is_some_and(|rate| rate.mark != 0)
    }

    /// Whether somebody may have to wait because others have started lately.
    fn counts_starts(&self, action: ActionId) -> bool {
        let limits = self.bounds.get(&action);
        limits.is_some_and(|limits| limits.rate().is_some() || limits.interval().is_some())
    }

    /// What must be true whenever a round has done with an event: no free slot beside someone
    /// who may have it, unless no worker of its pool has room, or operators hold it.
    pub(crate) fn settle(&self, now: Millis, out: &mut Vec<Violation>) {
        for action in self.bounds.keys() {
            if let Some(id) = self.lacks_a_slot(*action) {
                let words = format!("{id} stands ahead of a slot of {action} that is free");
                out.push(Violation::of(Promise::I6, words));
            }
            let held = self.hold_of(*action).mode.is_some();
            // Who waits for its rate waits; `rates` sees that nobody does for ever.
            if held || self.counts_starts(*action) || self.closed.contains(action) {
                continue;
            }
            // Where executions demand otherwise than when some were granted ahead, these come back first.
            let mut rows = self.rows.values();
            if rows.any(|seen| seen.action == *action && seen.ahead) {
                continue;
            }
            if let Some(id) = self.could_be_granted(now, *action) {
                let words = format!(
                    "{id} waits although a slot of {action} is free at {now}: {:?}",
                    self.rows.get(&id)
                );
                out.push(Violation::of(Promise::I6, words));
            }
        }
    }

    /// Somebody stands elsewhere from now on.
    pub(super) fn move_one(&mut self, moved: &Moved, out: &mut Vec<Violation>) {
        let waits = |seen: &&mut Seen| !seen.holds && !seen.ahead;
        match self.rows.get_mut(&moved.id).filter(waits) {
            Some(seen) => (seen.priority, seen.front) = (moved.priority, moved.front),
            None => {
                let words = format!("{} is moved and does not wait", moved.id);
                out.push(Violation::of(Promise::I11, words));
            }
        }
    }

    /// Somebody who surely has room in all its limits, and nobody before it lacks any.
    fn could_be_granted(&self, now: Millis, action: ActionId) -> Option<ExecutionId> {
        if !self.is_grouped(action) {
            return None;
        }
        let rule = self.bounds.get(&action).map(|limits| limits.order);
        let rule = rule.unwrap_or_default();
        let waiting: Vec<_> = self.eligible(now, action).collect();
        let grouping = self.grouping(action);
        let line = |seen: &Seen| {
            let flow = grouping.shares.flow(grouping, seen.words);
            (grouping.group(seen.words), flow)
        };
        let lines: BTreeSet<_> = waiting.iter().map(|(_, seen)| line(seen)).collect();
        // Whoever of these is the first: they all have room. Where slots are shared each flow of a group has
        // a first of its own.
        let heads = lines.into_iter().filter_map(|of| {
            let same = waiting.iter().copied().filter(|(_, seen)| line(seen) == of);
            let heads = self.heads(rule, &same.collect::<Vec<_>>(), of.0);
            let fit = |in_group| heads.iter().all(|(_, head)| self.has_room(head, in_group));
            let may_fit = heads.iter().any(|(_, head)| self.has_room(head, true));
            let id = heads.first()?.0;
            Some((of.0, id, may_fit, fit(true), fit(false)))
        });
        let heads: Vec<_> = heads.collect();
        let mut candidates = heads.iter().filter(|(_, _, may_fit, ..)| *may_fit);
        let all_fit = candidates.all(|(.., in_action)| *in_action);
        // A dear one of another flow may be the first of a group, and then nobody of it passes.
        let group_fits = |group: Group| {
            let mut of_group = heads.iter().filter(|(it, ..)| *it == group);
            of_group.all(|(_, _, _, in_group, _)| *in_group)
        };
        let sure = heads.iter().find(|(group, ..)| group_fits(*group));
        sure.map(|(_, id, ..)| *id).filter(|_| all_fit)
    }

    /// What must be true whenever time has passed: nobody has waited too long.
    pub(crate) fn pass(&self, now: Millis, out: &mut Vec<Violation>) {
        for (action, limits) in &self.bounds {
            let most = longest_wait(limits);
            let hold = self.hold_of(*action);
            if hold.mode.is_some() {
                continue;
            }
            let overdue = self.rows.iter().find(|(_, seen)| {
                seen.action == *action
                    && seen.may_expire(now)
                    && seen.since.max(hold.waits_from).saturating_add(most) < now
            });
            if let Some((id, seen)) = overdue {
                let words = format!("{id} waits {} ms of {most}", now - seen.since);
                out.push(Violation::of(Rule::Expiry, words));
            }
        }
    }

    pub(super) fn put_back(
        &mut self,
        now: Millis,
        id: ExecutionId,
        not_before: Option<Millis>,
        out: &mut Vec<Violation>,
    ) {
        let held = self
            .rows
            .get_mut(&id)
            .filter(|seen| seen.holds || seen.ahead);
        match held {
            // Its first delay was over when it was granted, whatever the clock shows now.
            Some(seen) => {
                (seen.holds, seen.since, seen.not_before) = (false, now, not_before);
                (seen.ahead, seen.worker, seen.kept) = (false, None, None);
            }
            None => out.push(Violation::of(
                Promise::I5,
                format!("{id} loses a slot that it does not hold"),
            )),
        }
    }

    pub(super) fn end(
        &mut self,
        now: Millis,
        told: &Told<'_>,
        id: ExecutionId,
        status: Status,
        out: &mut Vec<Violation>,
    ) {
        let Some(seen) = self.rows.remove(&id) else {
            let words = format!("{id} ends as {status} and had ended before");
            return out.push(Violation::of(Promise::I5, words));
        };
        let is_granted = seen.holds || seen.ahead;
        let reported = is_granted && told.reports.contains(id, seen.attempt, status);
        let by_run = matches!(
            status,
            Status::Succeeded | Status::Failed | Status::TimedOut
        );
        let unsendable = status == Status::Failed && told.lasting.unsendable.contains_key(&id);
        if by_run && !reported && !unsendable {
            let words = format!("{id} ends as {status}, and no run of its attempt said so");
            out.push(Violation::of(Promise::I5, words));
        }
        let hold = self.hold_of(seen.action);
        let waited = now.saturating_sub(seen.since.max(hold.waits_from));
        let most = self.bounds.get(&seen.action).map_or(0, longest_wait);
        if status == Status::Expired
            && (waited < most || !seen.may_expire(now) || hold.mode.is_some())
        {
            let words = format!("{id} expires after {waited} ms of {most}");
            out.push(Violation::of(Rule::Expiry, words));
        }
    }
}
