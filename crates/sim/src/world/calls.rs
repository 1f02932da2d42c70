//! Calls to the store, and what becomes of them.

use super::*;
use crate::beside::stands_beside;
use crate::holds::newer;
use crate::operations;
use crate::store::{MAX_BODIES, body_of};
use attune_executor::stored::{Batch, Sets};

impl World {
    /// Sends a call to the store. Its outcome may be unknown: the answer is lost, or the call
    /// is so late that its sender has given up.
    pub(crate) fn call(&mut self, party: Party, number: u64, call: StoreCall) {
        self.flow.sent(&call);
        let noise = self.noise;
        let fate = if self.rng.chance(noise.refused) {
            Fate::Refused
        } else if self.rng.chance(noise.unknown) {
            Fate::Unknown
        } else {
            Fate::Answered
        };
        let mut at = self.now + self.delay();
        let mut reply_at = at + self.delay();
        if self.rng.chance(noise.stalled) {
            let stall = self.rng.between(500, 5_000);
            if self.rng.chance(500) {
                at += stall;
            }
            reply_at += stall;
        }
        if fate != Fate::Answered || reply_at > self.now + 2 * noise.delay {
            self.flow.excuse(reply_at);
        }
        let is_commit = matches!(call, StoreCall::Commit(_));
        // Whoever writes the same again suffers from this alone: then it is the rule.
        let late = if self.has(Plant::SameEpoch) {
            1_000
        } else {
            300
        };
        if fate == Fate::Unknown && is_commit && self.rng.chance(late) {
            // It arrives after the connection was given up; nobody waits for its answer.
            let late = reply_at + self.rng.between(0, 3_000);
            if self.has(Plant::SameEpoch) {
                // The sender writes the same again as if nothing were on its way.
                let again = reply_at + self.delay();
                let call = call.clone();
                self.push(again, Ev::Store(party, number, call, Fate::Answered, again));
            } else {
                let failed = self.fail(&call, false);
                self.push(reply_at, Ev::To(party, Word::Reply(number, failed)));
            }
            return self.push(late, Ev::Store(party, 0, call, Fate::Answered, late));
        }
        self.push(at, Ev::Store(party, number, call, fate, reply_at));
    }

    /// How much longer the store takes over a call than over others.
    pub(super) fn held_up(&self, call: &StoreCall) -> Time {
        match call {
            StoreCall::Owner(_, call) => self.lasting.holds_up(call, self.now),
            _ => 0,
        }
    }

    pub(super) fn perform(&mut self, party: Party, call: StoreCall, fate: Fate) -> StoreReply {
        let commits = matches!(call, StoreCall::Commit(_));
        if self.now < self.store_down_until {
            return self.fail(&call, false);
        }
        if let Party::Owner(owner, _) = party
            && self.lasting.without_store(owner, self.now)
        {
            return self.fail(&call, false);
        }
        if fate == Fate::Refused {
            let refused = self.rng.chance(500);
            return self.fail(&call, refused);
        }
        if commits && self.now < self.refuse_until {
            return self.fail(&call, true);
        }
        if let StoreCall::Commit(written) = &call
            && self.refuses_beside(&written.commit.batch)
        {
            self.seen.refused_beside += 1;
            return self.fail(&call, true);
        }
        if let StoreCall::Owner(_, call_of_leases) = &call
            && self.lasting.refuses_leases(call_of_leases, self.now)
        {
            return self.fail(&call, true);
        }
        if let StoreCall::Owner(_, read) = &call
            && (self.lasting.fails(read, self.now) || self.cannot_read(read))
        {
            return self.fail(&call, false);
        }
        if let Party::Owner(owner, life) = party
            && commits
            && self.owners[owner].is_in(life)
            && std::mem::take(&mut self.owners[owner].break_commit)
        {
            // It may have waited long for its commit, while others were refused.
            self.flow.excuse(self.now);
            return self.fail(&call, true);
        }
        if commits && self.left_open.remove(&party) {
            return StoreReply::Owner(Box::new(Reply::Committed(Vec::new())));
        }
        let unknown = (fate == Fate::Unknown).then(|| self.fail(&call, false));
        let reply = self.do_call(call);
        match unknown {
            Some(unknown) => {
                if commits && self.has(Plant::CancelDb) {
                    self.left_open.insert(party);
                }
                let made = matches!(&reply, StoreReply::Owner(reply)
                    if matches!(**reply, Reply::Committed(_)));
                self.seen.unknown_commits += u64::from(made);
                unknown
            }
            None => reply,
        }
    }

    fn fail(&mut self, call: &StoreCall, refused: bool) -> StoreReply {
        self.flow.failed(call, refused);
        failed(call, refused)
    }

    fn do_call(&mut self, call: StoreCall) -> StoreReply {
        match call {
            StoreCall::Owner(owner, call) => {
                StoreReply::Owner(Box::new(self.do_owner_call(owner, &call)))
            }
            StoreCall::Commit(written) => StoreReply::Owner(Box::new(self.commit(&written))),
            StoreCall::RenewWorker(worker) => {
                let of = self.workers.iter().position(|it| it.asks_for(worker));
                let (pool, slots) = of.map_or((0, 1), |w| {
                    (self.plan.pool_of(w), self.plan.worker_slots[w])
                });
                let slots = u32::try_from(slots).unwrap_or(1);
                let draining = of.is_some_and(|w| self.workers[w].drains());
                let user = of.and_then(|w| self.user_of(w));
                let user = user.map(|user| user.to_string());
                let of = (pool_name(pool), user, slots, draining);
                let ttl = crate::plan::WORKER_TTL;
                StoreReply::WorkerRenewed(self.store.renew_worker(worker, ttl, of))
            }
            StoreCall::RetireWorker(worker, begun) => {
                self.store.retire_worker(worker, begun);
                StoreReply::WorkerRetired
            }
            StoreCall::WorkerOver(former) => {
                let worker = former.worker;
                self.store.worker_over(former);
                StoreReply::WorkerIsOver(worker)
            }
        }
    }

    fn do_owner_call(&mut self, owner: OwnerId, call: &Call) -> Reply {
        let (shown, now) = (self.now, self.store_now());
        let own_is_off = self.lasting.own_clock_is_off(shown, self.owner_of(owner));
        let ttl = crate::plan::OWNER_TTL;
        let store = &mut self.store;
        match call {
            Call::Renew(held) => Reply::Renewed(store.renew(shown, owner, held, ttl)),
            Call::Announce { ttl, cut_off } => {
                store.announce(now, owner, *ttl, *cut_off);
                Reply::Announced
            }
            Call::Look => Reply::Looked(Looked {
                store_now: WALL + now,
                own_now: WALL + shown + own_is_off,
                executors: store.stored_executors(now),
                leases: store.stored_leases(),
            }),
            Call::Acquire(_) | Call::TakeOver(_) => {
                if let Call::Acquire(wanted) = call {
                    self.judge_acquiring(owner, wanted);
                }
                let store = &mut self.store;
                let taken = match call {
                    Call::TakeOver(observed) => store.take_over(shown, owner, observed, ttl),
                    Call::Acquire(wanted) => store.acquire(shown, owner, wanted, ttl),
                    _ => Vec::new(),
                };
                self.seen.takeovers += taken.iter().filter(|(_, epoch)| epoch.0 > 1).count() as u64;
                for (partition, epoch) in &taken {
                    self.note(Note::Acquired(*partition, *epoch));
                }
                Reply::Acquired(taken)
            }
            Call::GiveUp(held, to) => {
                store.give_up(owner, held, *to);
                Reply::GaveUp
            }
            Call::Retire => {
                store.retire(owner);
                Reply::Retired
            }
            Call::LoadQueues { partition, around } => Reply::Queues {
                actions: self.actions_of(*partition),
                totals: self
                    .store
                    .totals
                    .iter()
                    .map(|(id, it)| (*id, *it))
                    .collect(),
                sets: Sets {
                    pauses: Arc::new(self.store.pauses.clone()),
                    policies: Arc::new(self.store.policies.clone()),
                },
                gap: self.store.request_gap(*around),
            },
            Call::LoadPauses { newer_than } => Reply::Pauses(newer(&store.pauses, *newer_than)),
            Call::LoadPolicies { newer_than } => {
                let policies = &store.policies;
                let newer = (policies.version > *newer_than).then(|| Arc::new(policies.clone()));
                Reply::Policies(newer)
            }
            Call::LoadRows {
                partition,
                after,
                limit,
            } => {
                let limit = usize::try_from(*limit).unwrap_or(usize::MAX);
                let (rows, next) = store.load_rows(*partition, *after, limit);
                Reply::Rows { rows, next }
            }
            Call::LoadMeters {
                partition,
                after,
                limit,
            } => {
                let limit = usize::try_from(*limit).unwrap_or(usize::MAX);
                let (rows, next) = store.load_meters(*partition, after.as_ref(), limit);
                Reply::Meters { rows, next }
            }
            Call::ScanRows {
                partitions,
                after,
                limit,
            } => {
                let limit = usize::try_from(*limit).unwrap_or(usize::MAX);
                let (rows, last) = store.scan_rows(partitions, *after, limit);
                Reply::Slice { rows, last }
            }
            Call::LookUp { requests, actions } => {
                let mut found = store.find_actions(actions);
                for action in &mut found {
                    let extra = self.extra.get(&action.id).copied().unwrap_or(0);
                    let limit = &mut action.spec.policy.concurrency.limit;
                    *limit = limit.map(|limit| limit + extra);
                }
                Reply::Known {
                    requests: self.store.look_up(requests),
                    actions: found,
                }
            }
            Call::LoadSlots(ids) => Reply::Slots(store.load_slots(now, ids)),
            Call::LoadWords(ids) | Call::LoadOperationWords(ids) => {
                Reply::Words(store.load_words(ids))
            }
            Call::LoadOperations(partitions) => {
                Reply::Operations(store.open_operations(partitions))
            }
            Call::LoadBodies(ids) => Reply::Bodies(store.load_bodies(ids)),
            Call::WorkerEnds => Reply::WorkerEnds(store.worker_ends()),
            Call::EndWorkers(observed) => Reply::EndedWorkers(store.end_workers(observed)),
            Call::Commit(_) => Reply::Committed(Vec::new()),
        }
    }

    /// What clients read from now on.
    fn judge_results(&mut self, batch: &Batch) {
        for end in &batch.ends {
            let Some(ended) = self.store.history.get(&end.id) else {
                continue;
            };
            if let Some(violation) = self.reports.judge(end.id, ended, &self.lasting) {
                self.oracle.blame(self.now, violation);
            }
        }
    }

    fn actions_of(&self, partition: PartitionId) -> Vec<Action> {
        let actions = self.store.actions.iter();
        let mine = actions.filter(|action| action.partition == partition);
        mine.cloned().collect()
    }

    fn commit(&mut self, written: &Written) -> Reply {
        let again = self.store.has_written(written.number);
        let batch = &written.commit.batch;
        let before = operations::before(&self.store, &written.commit);
        let store_now = WALL + self.store_now();
        if !again && self.store.would_take(batch) {
            self.oracle.judge_unbegun(self.now, &self.store, batch);
        }
        match self.store.commit(store_now, written.number, batch) {
            Ok(odd) => {
                self.note(Note::Committed(written.number, again));
                self.keep_beside(batch);
                if !again {
                    for (_, violation) in written.found.clone() {
                        self.note(Note::Broken(violation.rule));
                        self.oracle.blame(self.now, violation);
                    }
                    let mut shadows = BTreeMap::new();
                    // What is written beside a round says nothing about executions.
                    let judged = !stands_beside(&written.commit);
                    for fence in batch.fences.iter().filter(|_| judged) {
                        if let Some(shadow) = self.shadows.get(fence) {
                            shadows.insert(fence.0, shadow);
                        }
                    }
                    let store = &self.store;
                    self.oracle
                        .committed(self.now, store, batch, &odd, &shadows, &written.places);
                    for violation in self.holds.judge(WALL + self.now, store, batch) {
                        self.note(Note::Broken(violation.rule));
                        self.oracle.blame(self.now, violation);
                    }
                    self.judge_rates(written);
                    let operations = &mut self.operations;
                    for violation in operations.judge(&self.store, &before, &written.commit) {
                        self.note(Note::Broken(violation.rule));
                        self.oracle.blame(self.now, violation);
                    }
                    self.judge_results(batch);
                    self.judge_refusals(batch);
                    self.granted_now(batch);
                    self.judge_waiting();
                }
                let granted = batch.changes.iter();
                let granted = granted.filter(|change| change.grant_no.is_some());
                // As if more were too many bytes for one answer.
                let granted = granted.take(MAX_BODIES);
                Reply::Committed(granted.map(|change| body_of(change.id)).collect())
            }
            Err(lost) => {
                self.seen.fence_rejections += 1;
                self.note(Note::Fenced(written.number));
                Reply::Fenced(lost)
            }
        }
    }
}

/// A call that came to nothing; `refused` says that this is sure.
fn failed(call: &StoreCall, refused: bool) -> StoreReply {
    match call {
        StoreCall::Owner(..) | StoreCall::Commit(_) => {
            StoreReply::Owner(Box::new(Reply::Failed(Failure {
                refused,
                words: "as it was planned".to_owned(),
            })))
        }
        StoreCall::RenewWorker(_) | StoreCall::WorkerOver(_) | StoreCall::RetireWorker(..) => {
            StoreReply::Failed
        }
    }
}
