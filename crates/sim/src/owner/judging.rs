//! What an owner decides, brought before the oracle.

use attune_core::{QueueStats, Seq};
use attune_executor::stored::StoredExecution;

use super::*;
use crate::groups::Words;
use crate::oracle::totals_of;
use crate::shadow::Told;

/// Milliseconds. A row that lies further ahead of its new owner was written by a clock that was wrong: those that are
/// right are a few seconds apart at most.
const CLOCK_WAS_WRONG: i64 = 60_000;

impl World {
    /// Judges what a round decided, once. What the oracle says counts when it is stored: what a
    /// stale owner decides and cannot store does no harm.
    pub(super) fn judged(&mut self, o: usize, commit: Arc<Commit>) -> Written {
        self.judge_clock(o);
        let now = self.owners[o].wall(self.now);
        let (mut found, mut places) = (Vec::new(), Vec::new());
        for decided in &commit.decided {
            let key = (decided.partition, decided.epoch);
            let counter = self.has(Plant::Counter);
            self.note_operated(&decided.facts);
            let shadow = self.shadows.entry(key).or_default();
            let first = decided.number > shadow.judged;
            if first {
                shadow.judged = decided.number;
                let mut said = Vec::new();
                let facts = without_extra(&decided.facts, &self.extra);
                for fact in &facts {
                    if let Fact::Totals {
                        stats,
                        goes_on: true,
                        ..
                    } = fact
                    {
                        self.flow.idle.went_on(stats.action_id);
                    }
                }
                self.retries.note(&facts);
                said.extend(facts.iter().filter_map(|fact| self.oracle.said.judge(fact)));
                let told = Told {
                    reports: &self.reports,
                    lasting: &self.lasting,
                    retries: &self.retries,
                };
                shadow.judge(now, &told, &facts, &mut said);
                let actions = &self.plan.actions;
                let policies = &mut self.policies;
                policies.judge(key, &facts, actions, &shadow.bounds, &mut said);
                // What a step has left for the next one is judged then, and `progress` sees whether it comes.
                if !counter && !decided.goes_on {
                    shadow.settle(now, &mut said);
                }
                if !decided.goes_on {
                    shadow.pass(now, &mut said);
                }
                shadow.found = said;
            }
            let said = shadow.found.clone().into_iter();
            found.extend(said.map(|violation| (decided.partition, violation)));
            places.extend(self.owners[o].places_of(&decided.facts));
            if first {
                self.trace_facts(&decided.facts);
            }
        }
        Written {
            number: self.numbers,
            commit,
            places,
            found,
            decided: self.now,
            ahead: self.ahead(o),
        }
    }

    fn trace_facts(&mut self, facts: &[Fact]) {
        for fact in facts {
            match fact {
                Fact::Refused { request_id, .. } => self.oracle.refuse(*request_id),
                Fact::Accepted {
                    execution_id,
                    not_before,
                    ..
                } => {
                    self.oracle.accept(self.now, *execution_id, *not_before);
                    self.note(Note::Accepted(*execution_id));
                }
                Fact::Asked { execution_id, .. } => self.retries.cancel(*execution_id),
                Fact::Grouped { action_id, .. } => self.grouped(*action_id),
                Fact::Granted {
                    execution_id,
                    attempt,
                    ahead,
                    ..
                } => {
                    self.seen.ahead += u64::from(*ahead);
                    self.note(Note::Granted(*execution_id, *attempt));
                }
                Fact::Revoked {
                    execution_id,
                    attempt,
                    ..
                }
                | Fact::KeptOn {
                    execution_id,
                    attempt,
                    ..
                }
                | Fact::Retried {
                    execution_id,
                    attempt,
                    ..
                } => self.note(Note::Revoked(*execution_id, *attempt)),
                Fact::Ended {
                    execution_id,
                    status,
                    ..
                } => self.note(Note::Ended(*execution_id, *status)),
                _ => {}
            }
        }
    }

    /// What an owner says of a queue is stored, while it owns it.
    pub(super) fn judge_snapshots(&mut self, o: usize, snapshots: &[(i64, QueueStats)]) {
        let id = self.owners[o].id;
        for (version, stats) in snapshots {
            let epoch = Seq(*version).epoch();
            let actions = self.store.actions.iter();
            let mut partitions = actions
                .filter(|action| action.id == stats.action_id)
                .map(|action| usize::from(action.partition.0));
            let lease = partitions
                .next()
                .map(|partition| &self.store.leases[partition]);
            let owns = lease.is_some_and(|it| it.owner == Some(id) && it.epoch == epoch.0);
            let stored = self.store.totals.get(&stats.action_id).copied();
            let told = totals_of(stats);
            self.oracle.show(*version, stats);
            if owns && told != stored.unwrap_or_default() {
                let words = format!("{told:?} is told of a queue, and {stored:?} is stored");
                self.oracle
                    .blame(self.now, Violation::of(Rule::ToldEarly, words));
            }
        }
    }

    /// What a new owner has loaded is what it decides on.
    pub(super) fn noted(&mut self, o: usize, decided: &Decided) {
        let (party, key) = (self.owner_party(o), (decided.partition, decided.epoch));
        let is_loaded = |fact: &Fact| matches!(fact, Fact::Acquired { .. });
        if !decided.facts.iter().any(is_loaded) {
            let (now, mut said) = (self.owners[o].wall(self.now), Vec::new());
            let shadow = self.shadows.entry(key).or_default();
            let told = Told {
                reports: &self.reports,
                lasting: &self.lasting,
                retries: &self.retries,
            };
            shadow.judge(now, &told, &decided.facts, &mut said);
            // As with what is stored: what a stale owner believes does no harm.
            let lease = &self.store.leases[usize::from(decided.partition.0)];
            let owns = lease.owner == Some(self.owners[o].id) && lease.epoch == decided.epoch.0;
            for violation in said.into_iter().filter(|_| owns) {
                self.oracle.blame(self.now, violation);
            }
            return;
        }
        self.note(Note::TakenOver(party, decided.partition, decided.epoch));
        self.policies.loaded(key, &decided.facts);
        let mut shadow = Shadow {
            judged: decided.number,
            ..Shadow::default()
        };
        let all = usize::MAX;
        let (rows, _) = self.store.load_rows(decided.partition, None, all);
        let now = self.owners[o].wall(self.now);
        let asked = |id| self.store.active.get(&id).map(|row| row.request);
        let words = |id| asked(id).map(Words::of).unwrap_or_default();
        shadow.recover(now, &self.owners[o].since, &rows, words);
        shadow.learn(&decided.facts);
        self.shadows.insert(key, shadow);
    }

    /// Since when what is loaded waits, by the clock of whoever accepted it: the new owner may be behind that one's
    /// time, and whoever it then takes to be waiting from its own time on waits less than it was promised. A time
    /// that lies too far ahead for that tells nothing.
    pub(super) fn note_rows(&mut self, o: usize, reply: &Reply) {
        let (Reply::Rows { rows, .. } | Reply::Slice { rows, .. }) = reply else {
            return;
        };
        let owner = &mut self.owners[o];
        let wall = owner.wall(self.now);
        let since = |row: &StoredExecution| match row.created > wall + CLOCK_WAS_WRONG {
            true => wall,
            false => row.created,
        };
        owner
            .since
            .extend(rows.iter().map(|row| (row.id, since(row))));
    }

    pub(super) fn counted(&mut self, o: usize, counter: Counter) {
        let seen = &mut self.seen;
        match counter {
            Counter::StaleCompletion => {
                seen.duplicates_dropped += 1;
                self.believe_in_a_free_slot(o);
            }
            Counter::Repeated => seen.duplicates_dropped += 1,
            Counter::Revoked => seen.revokes += 1,
            Counter::Retried => seen.retries += 1,
            Counter::Synced => seen.syncs += 1,
            Counter::Bounced => seen.bounces += 1,
            Counter::Returned => seen.returns += 1,
            Counter::Cancelled => seen.cancelled += 1,
            Counter::Expired => seen.expired += 1,
            Counter::Dropped => seen.dropped += 1,
            Counter::Replaced => seen.replaced += 1,
            Counter::Abandoned => seen.abandoned += 1,
            Counter::CommitRefused => seen.refused_commits += 1,
            Counter::ForceReleased => seen.force_released += 1,
            Counter::Undispatchable => seen.unsendable += 1,
            Counter::SlotLeakMended
            | Counter::SlotMissingMended
            | Counter::WaitingLeakMended
            | Counter::WaitingMissingMended => {
                seen.mended += 1;
                self.mended(o, counter);
            }
            _ => {}
        }
    }

    /// Memory and store must never come apart; who has lost a partition may think so.
    fn mended(&mut self, o: usize, counter: Counter) {
        let owner = &self.owners[o];
        let mut subscribed = owner.subscriptions.values();
        let owns_all = subscribed.all(|of| {
            let lease = &self.store.leases[usize::from(of.partition.0)];
            lease.owner == Some(owner.id)
        });
        if owns_all && self.plan.plant.is_none() {
            let words = format!("memory and store differ: {counter:?}");
            self.oracle
                .blame(self.now, Violation::of(Rule::Stored, words));
        }
    }
}

/// The facts as they would be without slots that a planted counter believes to be free.
fn without_extra(facts: &[Fact], extra: &BTreeMap<attune_core::ActionId, u32>) -> Vec<Fact> {
    let mut facts = facts.to_vec();
    for fact in &mut facts {
        if let Fact::Bounds { action_id, limits } = fact
            && let Some(extra) = extra.get(action_id)
        {
            limits.max_concurrent = limits
                .max_concurrent
                .map(|limit| limit.saturating_sub(*extra));
        }
    }
    facts
}
