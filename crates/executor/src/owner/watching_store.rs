//! The store of these tests.

use super::*;
use crate::stored::{Batch, Change};

impl World {
    pub(super) fn answer(&mut self, call: Call) -> Reply {
        if self.now < self.away_until {
            return failed("away");
        }
        if self.refuses.is_some_and(|refuses| refuses(&call)) {
            return Reply::Failed(Failure {
                refused: true,
                words: "permission denied".to_owned(),
            });
        }
        match call {
            Call::Announce { cut_off, .. } => {
                self.announced.push(cut_off);
                Reply::Announced
            }
            Call::GiveUp(held, to) => {
                for (partition, epoch) in held {
                    let lease = &mut self.leases[usize::from(partition.0)];
                    assert_eq!(lease.epoch, epoch);
                    (lease.holder, lease.wanted_owner, lease.ttl) = (None, to, 0);
                }
                Reply::GaveUp
            }
            Call::Look => Reply::Looked(Looked {
                store_now: 1_700_000_000_000 + self.now + self.store_ahead,
                own_now: 1_700_000_000_000 + self.now + self.own_ahead,
                executors: self.executors.clone(),
                leases: self.leases.clone(),
            }),
            Call::Renew(held) => Reply::Renewed(held.into_iter().map(|(id, _)| id).collect()),
            Call::Acquire(wanted) => {
                let mut taken = Vec::new();
                for partition in wanted {
                    let lease = &mut self.leases[usize::from(partition.0)];
                    assert_eq!(lease.holder, Some(self.owner.options.id));
                    lease.epoch = Epoch(lease.epoch.0 + 1);
                    taken.push((partition, lease.epoch));
                    self.taken.push((partition, self.now));
                }
                Reply::Acquired(taken)
            }
            Call::TakeOver(_) if self.refuses_takes => Reply::Failed(Failure {
                refused: true,
                words: "lock timeout".to_owned(),
            }),
            Call::TakeOver(observed) => {
                let mut taken = Vec::new();
                for seen in observed {
                    let lease = &mut self.leases[usize::from(seen.partition.0)];
                    assert_eq!(lease.observed(), seen, "nothing moved meanwhile");
                    lease.epoch = Epoch(lease.epoch.0 + 1);
                    lease.holder = Some(self.owner.options.id);
                    taken.push((lease.partition, lease.epoch));
                    self.taken.push((lease.partition, self.now));
                }
                Reply::Acquired(taken)
            }
            Call::LoadOperations(_) => Reply::Operations(self.operations.clone()),
            Call::WorkerEnds => Reply::WorkerEnds(self.workers.clone()),
            Call::EndWorkers(observed) => {
                for (worker, renewals) in &observed {
                    let mut rows = self.workers.iter_mut();
                    let row = rows.find(|row| row.worker == *worker).unwrap();
                    assert_eq!(row.renewals, *renewals);
                    row.ended = true;
                    self.ended.push((*worker, self.now));
                }
                Reply::EndedWorkers(observed.iter().map(|(worker, _)| *worker).collect())
            }
            Call::LoadQueues { partition, .. } => Reply::Queues {
                actions: self
                    .actions()
                    .filter(|of| of.partition == partition)
                    .collect(),
                totals: vec![],
                sets: self.sets.clone(),
                gap: self.gap,
            },
            Call::LoadPauses { .. } => Reply::Pauses(Some(self.sets.pauses.clone())),
            Call::LoadPolicies { .. } => Reply::Policies(Some(self.sets.policies.clone())),
            Call::LoadRows { partition, .. } if self.unreadable == Some(partition) => {
                Reply::Failed(Failure {
                    refused: true,
                    words: "a stored priority cannot be read".to_owned(),
                })
            }
            Call::LoadRows { partition, .. } => Reply::Rows {
                rows: self.rows(|(slot, shown)| *shown && slot.id.partition() == partition),
                next: None,
            },
            Call::ScanRows { after: Some(_), .. } => Reply::Slice {
                rows: vec![],
                last: None,
            },
            Call::ScanRows { .. } => Reply::Slice {
                rows: self.rows(|_| true),
                last: self.slots.iter().map(|(slot, _)| slot.id).max(),
            },
            Call::LookUp { actions, .. } if self.is_unread(&actions) => failed("unreadable"),
            Call::LookUp { actions, .. } => {
                let known = self.action.spec.action_ref.as_str();
                let asked = actions.iter().any(|action_ref| action_ref == known);
                Reply::Known {
                    requests: vec![],
                    actions: Vec::from_iter(asked.then(|| self.action.clone())),
                }
            }
            Call::LoadSlots(ids) => {
                let slots = self.slots.iter().map(|(slot, _)| slot.clone());
                let held = slots.filter(|slot| slot.status.holds_slot());
                Reply::Slots(held.filter(|slot| ids.contains(&slot.id)).collect())
            }
            Call::LoadWords(_) => Reply::Words(Vec::new()),
            Call::LoadOperationWords(ids) => Reply::Words(operating_tests::of_nobody(ids)),
            Call::LoadBodies(ids) => {
                self.read.push(ids.len());
                let text = format!("\"{}\"", "x".repeat(self.body_bytes));
                let parameters = attune_core::RawValue::from_string(text).unwrap();
                let found = ids.into_iter().filter(|_| !self.are_gone);
                let bodies = found.map(|id| Body {
                    id,
                    parameters: parameters.clone(),
                    timeout_seconds: None,
                    trace: None,
                });
                Reply::Bodies(bodies.collect())
            }
            Call::Commit(commit) => {
                self.letters += commit.batch.letters.len();
                operating_tests::keep(&mut self.operations, &commit.batch);
                let audit = commit.batch.audit.iter();
                self.entries.extend(audit.filter_map(beside::request_of));
                self.write(&commit.batch);
                Reply::Committed(vec![])
            }
            Call::Retire => Reply::Retired,
            Call::LoadMeters { .. } => unreachable!("no action counts anything"),
        }
    }

    fn actions(&self) -> impl Iterator<Item = Action> + '_ {
        let all = self.others.iter().chain([&self.action]);
        all.cloned()
    }

    fn write(&mut self, batch: &Batch) {
        for new in &batch.inserts {
            let slot = StoredSlot {
                id: new.id,
                status: new.status,
                attempt: new.attempt,
                grant_no: new.grant_no,
                worker: new.worker,
                ..slot(1, WorkerId::fresh())
            };
            self.slots.push((slot, true));
        }
        for change in &batch.changes {
            self.change(change);
        }
        for end in &batch.ends {
            self.slots.retain(|(slot, _)| slot.id != end.id);
        }
    }

    fn change(&mut self, change: &Change) {
        let mut slots = self.slots.iter_mut().map(|(slot, _)| slot);
        let Some(slot) = slots.find(|slot| slot.id == change.id) else {
            return;
        };
        if let Some(transition) = change.transition {
            slot.status = transition.to();
            slot.attempt = change.attempt;
            slot.worker = change.worker;
        }
        if let Some(put_back) = &change.put_back {
            slot.unbegun = put_back.unbegun;
            self.taken_back.push((change.id, self.now));
        }
        if change.started.is_some() {
            slot.status = Status::Running;
        }
    }
}
