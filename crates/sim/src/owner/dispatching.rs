//! What an owner tells the workers and those who ask.

use super::*;
use crate::client::asker;
use crate::explaining;
use crate::happened;
use attune_core::RejectCode;
use attune_executor::ActionEvent;

impl World {
    pub(super) fn dispatch(&mut self, o: usize, id: PublishId, dispatches: &[Dispatch]) {
        let party = self.owner_party(o);
        if !self.has_bus(o) {
            let unknown = Word::Published(id, Published::Unknown);
            return self.soon(Ev::To(party, unknown));
        }
        let mut refused = Vec::new();
        let unknown = self.rng.chance(self.noise.unknown);
        for (place, dispatch) in dispatches.iter().enumerate() {
            let grantee = &dispatch.grantee;
            let key = (grantee.execution_id, grantee.attempt);
            let action = usize::try_from(grantee.action.id.0 - 1).unwrap_or(0);
            let pool = self.plan.actions[action].pool;
            if let Some(refusal) = self.refusal(pool, key.0) {
                self.seen.refused_dispatches += 1;
                refused.push((place, refusal));
                continue;
            }
            self.note(Note::Dispatched(key.0, key.1));
            self.oracle.dispatched(self.now, &self.store, key);
            if !unknown || self.rng.chance(500) {
                let body = Body::Request(key.0, key.1, grantee.action.id);
                self.publish(Name::Requested(pool), &body);
            }
        }
        let published = match (unknown, refused.is_empty()) {
            (true, _) => Published::Unknown,
            (false, true) => Published::Confirmed,
            (false, false) => Published::Refused(refused),
        };
        self.soon(Ev::To(party, Word::Published(id, published)));
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
                    // A conflict is one with something that is an execution.
                    let refusal = answer.outcome.as_ref().err();
                    let is_refused = refusal.is_some_and(|it| it.code != RejectCode::Conflict);
                    if !self.rng.chance(self.noise.lost) {
                        self.soon(Ev::Answer(ask, copy, is_refused));
                    }
                }
            }
            Send::Cancels(cancels) => {
                for key in cancels {
                    for worker in 0..self.workers.len() {
                        let party = Party::Worker(worker, self.workers[worker].life());
                        if !self.rng.chance(self.noise.lost) {
                            self.soon(Ev::To(party, Word::CancelRun(key)));
                        }
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
