//! The loop of an owner: gather, look up, decide, commit, tell; strictly one round after another.

use std::collections::BTreeMap;

use attune_core::{Epoch, PartitionId, RequestId};
use attune_executor::draft::Draft;
use attune_executor::{Event, PartitionCore, ReconcileBounds};

use super::*;

impl World {
    /// Goes on for as long as nothing must be waited for.
    pub(super) fn drive(&mut self, o: usize) {
        loop {
            let owner = &mut self.owners[o];
            if !owner.alive || !matches!(owner.stage, Stage::Idle) {
                return;
            }
            if let Some(event) = owner.lease_events.pop_front() {
                match event {
                    LeaseEvent::Acquired(acquired) => {
                        owner.stage = Stage::Load(acquired);
                        self.issue(o);
                    }
                    LeaseEvent::Lost(lost) => {
                        for partition in lost {
                            self.step_down(o, partition);
                        }
                    }
                }
                continue;
            }
            let due = self.next_timer(o) <= self.now;
            let owner = &mut self.owners[o];
            if owner.control.is_empty() && owner.commands.is_empty() && !due {
                return self.sleep(o);
            }
            let trusted = self.now < owner.trusted_until || self.now < owner.blind_until;
            if !trusted && !owner.owned.is_empty() {
                // A renewal or a loss wakes it.
                return;
            }
            if due && self.now >= owner.reconcile_at {
                owner.reconcile_at = self.now + RECONCILE_EVERY;
                if !owner.owned.is_empty() {
                    owner.stage = Stage::Slots;
                    self.issue(o);
                    continue;
                }
            }
            let mut work = Vec::new();
            for inbox in [&mut owner.control, &mut owner.commands] {
                let room = MAX_ROUND - work.len();
                work.extend(inbox.drain(..room.min(inbox.len())));
            }
            owner.stage = Stage::LookUp(work);
            self.issue(o);
        }
    }

    pub(super) fn next_timer(&self, o: usize) -> Time {
        let owner = &self.owners[o];
        let deadlines = owner
            .owned
            .values()
            .filter_map(|owned| owned.core.next_deadline());
        let deadline = deadlines.min().map(|time| time - WALL - owner.skew);
        owner.reconcile_at.min(deadline.unwrap_or(Time::MAX))
    }

    pub(super) fn sleep(&mut self, o: usize) {
        let at = self.next_timer(o).max(self.now + 1);
        let owner = &mut self.owners[o];
        if owner.wake_at <= self.now || owner.wake_at > at {
            owner.wake_at = at;
            let party = self.owner_party(o);
            self.push(at, Ev::To(party, Word::Wake));
        }
    }

    /// Makes the store call that the stage waits for, if it needs one.
    pub(super) fn issue(&mut self, o: usize) {
        let party = self.owner_party(o);
        if matches!(self.owners[o].stage, Stage::Write(_)) {
            self.add_fences(o);
        }
        let owner = &mut self.owners[o];
        let call = match &owner.stage {
            Stage::Idle => return,
            Stage::Load(acquired) => Call::Load(acquired.iter().map(|(p, _)| *p).collect()),
            Stage::Slots => Call::Slots(owner.owned.keys().copied().collect()),
            Stage::LookUp(work) => {
                let (requests, refs) = questions(work);
                if requests.is_empty() && refs.is_empty() {
                    return self.journal_reply(o, Reply::Known(Vec::new(), Vec::new()));
                }
                Call::LookUp(requests, refs)
            }
            Stage::Write(writing) if writing.round.is_empty() => {
                return self.journal_reply(o, Reply::Committed);
            }
            Stage::Write(writing) => Call::Commit(Box::new(Written {
                number: writing.number,
                batch: writing.round.batch.clone(),
                places: writing.places.clone(),
                found: writing.found.clone(),
            })),
        };
        let number = owner.next_call();
        owner.current_call = number;
        self.call(party, number, call);
    }

    pub(super) fn journal_reply(&mut self, o: usize, reply: Reply) {
        let stage = std::mem::replace(&mut self.owners[o].stage, Stage::Idle);
        match (stage, reply) {
            (Stage::Write(writing), Reply::Failed | Reply::Broken)
                if !self.has(Plant::SameEpoch) =>
            {
                let touched: Vec<PartitionId> = writing
                    .round
                    .touched()
                    .map(|(partition, _)| partition)
                    .collect();
                for partition in touched {
                    self.step_down(o, partition);
                }
            }
            (stage, Reply::Failed) => {
                self.owners[o].stage = stage;
                let at = self.now + self.rng.between(20, 400);
                let party = self.owner_party(o);
                self.push(at, Ev::To(party, Word::Retry));
            }
            (Stage::LookUp(work), Reply::Known(known, actions)) => {
                let mut draft = Draft::default();
                let partitions: Vec<PartitionId> = self.owners[o].owned.keys().copied().collect();
                for partition in partitions {
                    self.step(o, partition, Event::Known(known.clone()), false, &mut draft);
                    for action in actions.iter().filter(|a| a.partition == partition) {
                        let event = Event::ActionKnown(action.clone());
                        self.step(o, partition, event, false, &mut draft);
                    }
                    self.step(o, partition, Event::Tick, true, &mut draft);
                }
                let mut places = Vec::new();
                for inbound in work {
                    self.decide(o, inbound, &mut draft, &mut places);
                }
                self.write(o, draft, places);
            }
            (Stage::Load(acquired), Reply::Loaded(loaded)) => self.take_over(o, acquired, *loaded),
            (Stage::Slots, Reply::Slots(slots)) => {
                let bounds = ReconcileBounds {
                    worker_grace: GRACE.unsigned_abs(),
                    republish_after: REPUBLISH_AFTER.unsigned_abs(),
                    interval: RECONCILE_EVERY.unsigned_abs(),
                };
                let mut draft = Draft::default();
                let owner = &self.owners[o];
                // Read by one who stood still, it may be what the next owners have done.
                let trusted = self.now < owner.trusted_until || self.now < owner.blind_until;
                let partitions = owner.owned.keys().copied().filter(|_| trusted);
                for partition in partitions.collect::<Vec<_>>() {
                    let mine = slots.iter().filter(|slot| slot.id.partition() == partition);
                    let slots = mine.cloned().collect();
                    self.step(
                        o,
                        partition,
                        Event::Reconcile { slots, bounds },
                        false,
                        &mut draft,
                    );
                }
                self.write(o, draft, Vec::new());
            }
            (Stage::Write(writing), Reply::Committed) => self.written(o, writing.round),
            (Stage::Write(mut writing), Reply::Fenced(lost)) => {
                for partition in lost {
                    writing.round.drop_partition(partition);
                    writing
                        .places
                        .retain(|(id, ..)| id.partition() != partition);
                    writing.found.retain(|(of, _)| *of != partition);
                    self.step_down(o, partition);
                }
                self.owners[o].stage = Stage::Write(writing);
                self.issue(o);
            }
            (stage, _) => self.owners[o].stage = stage,
        }
    }

    pub(super) fn take_over(
        &mut self,
        o: usize,
        acquired: Vec<(PartitionId, Epoch)>,
        mut loaded: Loaded,
    ) {
        let (now, party) = (self.wall(o), self.owner_party(o));
        let count = self.plan.partitions;
        let mut draft = Draft::default();
        for (partition, epoch) in &acquired {
            let queues = self.owners[o].queues.clone();
            let core = PartitionCore::new(*partition, count, *epoch, queues);
            self.shadows.insert((*partition, *epoch), Shadow::default());
            let owned = Owned {
                core,
                subscriptions: [0; 2],
                extra: BTreeMap::new(),
            };
            self.owners[o].owned.insert(*partition, owned);
            let mine = loaded
                .actions
                .iter()
                .filter(|action| action.partition == *partition);
            let actions: Vec<_> = mine.cloned().collect();
            let totals = loaded.totals.clone();
            self.step(
                o,
                *partition,
                Event::Recover { actions, totals },
                false,
                &mut draft,
            );
            let mut rows = loaded.rows.remove(partition).unwrap_or_default();
            if let Some(shadow) = self.shadows.get_mut(&(*partition, *epoch)) {
                shadow.recover(now, &rows);
            }
            // In two pages, as a large partition would be.
            let second = rows.split_off(rows.len() / 2);
            for rows in [rows, second] {
                self.step(o, *partition, Event::RecoverRows(rows), false, &mut draft);
            }
            self.subscribe(o, *partition);
            self.note(Note::TakenOver(party, *partition, *epoch));
        }
        for (partition, _) in acquired {
            self.step(o, partition, Event::Tick, true, &mut draft);
        }
        self.write(o, draft, Vec::new());
    }
}

/// What the store must be asked before these can be decided on.
fn questions(work: &[Inbound]) -> (Vec<RequestId>, Vec<String>) {
    let (mut requests, mut refs) = (Vec::new(), Vec::new());
    for inbound in work {
        match &inbound.body {
            Body::Submit(submit) => requests.push(submit.request_id),
            Body::Changed(_, action_ref, _) => refs.push(action_ref.to_string()),
            _ => {}
        }
    }
    (requests, refs)
}
