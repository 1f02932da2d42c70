//! What an owner tells the workers and those who ask.

use super::*;
use crate::client::asker;
use crate::explaining;
use crate::happened;
use crate::worker::{Grant, Worker};
use attune_core::{Refusal, RejectCode, WorkerId};
use attune_dispatch::Section;
use attune_executor::ActionEvent;

impl World {
    /// Sections on their way to a life. They are kept by nobody: whoever is not there is told at once, and
    /// what is on its way may be lost, come twice, and overtake others.
    pub(super) fn dispatch(
        &mut self,
        o: usize,
        id: PublishId,
        life: WorkerId,
        sections: &[Section<Dispatch>],
    ) {
        let party = self.owner_party(o);
        if !self.has_bus(o) {
            let unknown = Word::Published(id, Published::Unknown);
            return self.soon(Ev::To(party, unknown));
        }
        let receives = |worker: &Worker| worker.receives(life);
        let mut to = self.workers.iter().position(receives);
        // Its connection is closed in the moment in which something comes for it.
        if let Some(w) = to.take_if(|_| self.rng.chance(self.noise.late / 4)) {
            self.cut_worker(w);
        }
        let unknown = self.rng.chance(self.noise.unknown);
        let (mut refused, mut sent) = (Vec::new(), Vec::new());
        for (place, section) in sections.iter().enumerate() {
            for grant in &section.grants {
                let key = (grant.grantee.execution_id, grant.grantee.attempt);
                self.note(Note::Dispatched(key.0, key.1));
                self.oracle.dispatched(self.now, &self.store, key);
            }
            let refusal = match to {
                None => Some(Refusal::Unroutable),
                Some(w) => self.refusal(self.plan.pool_of(w), section),
            };
            match refusal {
                Some(refusal) => {
                    self.seen.refused_dispatches += 1;
                    refused.push((place, refusal));
                }
                None => sent.push(as_granted(section)),
            }
        }
        if let Some(w) = to.filter(|_| !sent.is_empty() && (!unknown || self.rng.chance(500))) {
            self.carry(w, life, sent);
        }
        if self.has(Plant::BounceDelivered) && self.rng.chance(20) {
            let all = 0..sections.len();
            refused = all.map(|place| (place, Refusal::Unroutable)).collect();
        }
        let published = match (unknown, refused.is_empty()) {
            (true, _) => Published::Unknown,
            (false, true) => Published::Confirmed,
            (false, false) => Published::Refused(refused),
        };
        // What the broker says of one message comes another way than what a worker says.
        let is_late =
            matches!(published, Published::Refused(_)) && self.rng.chance(self.noise.late * 4);
        let within = self.noise.delay * if is_late { 10 } else { 1 };
        let at = self.now + self.rng.between(0, within);
        self.push(at, Ev::To(party, Word::Published(id, published)));
    }

    /// Sections go to a worker, or are lost.
    fn carry(&mut self, w: usize, life: WorkerId, sections: Vec<Section<Grant>>) {
        let party = Party::Worker(w, self.workers[w].life());
        let (link, sections) = (self.workers[w].link(), Arc::new(sections));
        if !self.rng.chance(self.noise.lost) {
            let word = Word::Sections(life, link, Arc::clone(&sections));
            self.soon(Ev::To(party, word));
        }
        if self.rng.chance(self.noise.doubled) {
            let at = self.now + self.rng.between(0, self.noise.delay * 10);
            self.push(at, Ev::To(party, Word::Sections(life, link, sections)));
        }
    }

    /// What is told to whoever listens is stored.
    fn judge_events(&mut self, events: &[ActionEvent]) {
        for event in events {
            if let Some(violation) = happened::judge(&self.store, event) {
                self.oracle.blame(self.now, violation);
            }
            self.seen.events += 1;
        }
    }

    pub(super) fn send(&mut self, o: usize, send: Send) {
        if !self.has_bus(o) {
            if let Send::Snapshots(snapshots) = send {
                let queues = snapshots.iter().map(|(_, stats)| stats.action_id);
                let lost = Word::SnapshotsLost(queues.collect());
                self.soon(Ev::To(self.owner_party(o), lost));
            }
            return;
        }
        match send {
            Send::Answers(answers) => {
                for (reply_to, answer) in answers {
                    if let Ok(accepted) = &answer.outcome
                        && let Some(id) = accepted.execution_id
                    {
                        self.told(&reply_to, id);
                        let said = answer.explanation.as_ref();
                        let found = said.and_then(|said| explaining::judge(&self.store, id, said));
                        if let Some(violation) = found {
                            self.oracle.blame(self.now, violation);
                        }
                    }
                    let Some((ask, copy)) = asker(&reply_to) else {
                        continue;
                    };
                    // A conflict of a submission is one with something that is an execution.
                    let refusal = answer.outcome.as_ref().err();
                    let is_refused = refusal
                        .is_some_and(|it| it.code != RejectCode::Conflict || !self.submits(ask));
                    if !self.rng.chance(self.noise.lost) {
                        self.soon(Ev::Answer(ask, copy, is_refused));
                    }
                }
            }
            Send::HandedOver { partition, to, .. } => {
                let next = self
                    .owners
                    .iter()
                    .position(|owner| owner.alive && owner.id == to);
                if let Some(next) = next
                    && !self.rng.chance(self.noise.lost)
                {
                    let party = self.owner_party(next);
                    self.soon(Ev::To(party, Word::HandedOver(partition)));
                }
            }
            Send::Events(events) => self.judge_events(&events),
            Send::Snapshots(snapshots) => self.judge_snapshots(o, &snapshots),
        }
    }
}

/// A section as its worker reads it.
fn as_granted(section: &Section<Dispatch>) -> Section<Grant> {
    let grants = section.grants.iter().map(|dispatch| Grant {
        key: (dispatch.grantee.execution_id, dispatch.grantee.attempt),
        action: dispatch.grantee.action.id,
        slots: dispatch.grantee.slots,
    });
    Section {
        partition: section.partition,
        epoch: section.epoch,
        number: section.number,
        owner: section.owner,
        sync: section.sync.clone(),
        sync_after: section.sync_after,
        sync_to: section.sync_to,
        settled: section.settled.clone(),
        cancel: section.cancel.clone(),
        recall: section.recall.clone(),
        grants: grants.collect(),
    }
}
