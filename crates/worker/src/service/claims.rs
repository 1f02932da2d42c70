//! Claiming, and what follows from a claim.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use attune_messages::v1::ExecutionRequested;
use attune_runtime::error_chain;
use attune_store::{Claim, StoreError};
use tokio::time::Instant;

use super::{Phase, Service};
use crate::inbox::Key;
use crate::lease::{Life, answer};
use crate::runs::not_run;

/// A claim that the store has not answered.
pub(super) struct Claiming {
    pub(super) life: Arc<Life>,
    pub(super) keys: Vec<Key>,
    pub(super) answer: Pin<Box<dyn Future<Output = Result<Vec<Claim>, StoreError>> + Send>>,
}

impl Service {
    /// Claims as many of those that wait as there are free slots: one call at a time, so that
    /// what arrives meanwhile goes together in the next.
    pub(super) fn start_claim(&mut self) {
        let serving = matches!(self.phase, Phase::Serving);
        let Some(life) = self.life.clone().filter(|life| serving && !life.is_over()) else {
            return;
        };
        let waits = self.pending.claim.is_some() || self.pending.retry_at.is_some();
        if waits || self.stuck.is_stuck() {
            return;
        }
        let free = self.options.slots.saturating_sub(self.runs.len());
        if free == 0 || !self.inbox.is_waiting() || !self.outbox.has_room() {
            return;
        }
        let keys = self
            .inbox
            .take(free.min(self.pending.at_most.unwrap_or(free)));
        if keys.is_empty() {
            // All that waits is set aside.
            return;
        }
        let store = Arc::clone(&self.store);
        let (worker, wanted) = (life.worker(), keys.clone());
        let call = tokio::spawn(async move { store.claim(worker, &wanted).await });
        // After the ttl the answer would be for a lease that was lost long ago.
        let answer = Box::pin(answer(call, Instant::now() + self.options.lease_ttl));
        self.pending.claim = Some(Claiming { life, keys, answer });
    }

    pub(super) fn claimed(&mut self, claiming: Claiming, answer: Result<Vec<Claim>, StoreError>) {
        match answer {
            Ok(claims) => {
                self.pending.retry.reset();
                self.pending.retry_log.reset();
                self.pending.claiming.succeeded();
                let at_most = self.pending.at_most.map(|most| most * 2);
                self.pending.at_most = at_most.filter(|most| *most < self.options.slots);
                self.settle(&claiming.life, claiming.keys, &claims);
            }
            Err(StoreError::Conflict(reason)) => {
                // Nothing was claimed. It waits for the next life, or goes back to the bus.
                let life = claiming.life;
                if !life.over().is_cancelled() {
                    tracing::error!(
                        worker.id = %life.worker(),
                        reason,
                        "the lease is lost, as a claim was told; what the worker runs is killed"
                    );
                    self.leases.lost(&life);
                    self.pending.claiming.failed(reason);
                }
                self.return_unclaimed(claiming.keys);
            }
            Err(error) => {
                // Whether it was committed is unknown; the same worker may claim again.
                let (wrote_nothing, error) = (error.wrote_nothing(), error_chain(&error));
                if self.pending.retry_log.is_due() {
                    let tries = self.pending.retry_log.tries();
                    tracing::warn!(error, tries, "a claim failed; it is tried again");
                }
                // One that is refused while others are claimed says nothing about the store.
                let keys = claiming.keys;
                let is_its_own = |key| wrote_nothing && self.inbox.is_to_blame(key);
                if !matches!(&keys[..], [key] if is_its_own(key)) {
                    self.pending.claiming.failed(error);
                }
                self.refused(keys, wrote_nothing);
            }
        }
    }

    /// Lets what could not be claimed wait again. One row that the store refuses must not hold up
    /// the others: they are claimed in ever smaller parts until it stands alone, and then it is set
    /// aside.
    fn refused(&mut self, keys: Vec<Key>, wrote_nothing: bool) {
        match keys.as_slice() {
            [key] if wrote_nothing => {
                let (execution_id, attempt) = *key;
                self.inbox.set_aside(*key);
                if self.pending.aside_log.is_due() {
                    let (count, tries) =
                        (self.inbox.set_aside_count(), self.pending.aside_log.tries());
                    tracing::warn!(
                        execution.id = %execution_id,
                        execution.attempt = %attempt,
                        set_aside_count = count,
                        tries,
                        "the store refuses to have this execution claimed; others go before it"
                    );
                }
                self.give_up_unless_serving();
            }
            _ if wrote_nothing => {
                self.pending.at_most = Some(keys.len() / 2);
                // The half of them may be claimed at once.
                return self.return_unclaimed(keys);
            }
            _ => self.return_unclaimed(keys),
        }
        self.pending.retry_at = Some(Instant::now() + self.pending.retry.next_delay());
    }

    /// Runs what was won, drops what was lost, and acknowledges deliveries that have nothing
    /// left. A worker whose life is over runs nothing: what it won is taken back from it with
    /// the rest.
    fn settle(&mut self, life: &Arc<Life>, keys: Vec<Key>, claims: &[Claim]) {
        let won: HashMap<Key, bool> = claims
            .iter()
            .map(|claim| ((claim.execution_id, claim.attempt), claim.cancel_requested))
            .collect();
        let mut done = Vec::new();
        let mut unclaimed = Vec::new();
        for key in keys {
            match won.get(&key) {
                Some(cancel_requested) => {
                    self.counters.claims_won.add(1);
                    self.runs.record_claimed(key, life.worker());
                    let cancelled = *cancel_requested || self.inbox.is_cancelled(&key);
                    if let Some(request) = self.inbox.settle(key, true, &mut done) {
                        self.begin(request, cancelled, life);
                    }
                }
                None if life.is_over() => unclaimed.push(key),
                None => {
                    self.counters.claims_lost.add(1);
                    self.inbox.settle(key, false, &mut done);
                }
            }
        }
        self.return_unclaimed(unclaimed);
        self.acknowledge(done);
    }

    fn begin(&mut self, request: ExecutionRequested, cancelled: bool, life: &Arc<Life>) {
        if life.is_over() {
            self.counters.abandoned.add(1);
        } else if cancelled {
            self.outbox.push(not_run(&request, life));
        } else {
            self.counters.runs.add(1);
            if let Some(finished) = self.runs.start(request, life) {
                self.finished(finished);
            }
        }
    }

    /// They wait again, or their messages go back to the bus when nothing is taken any more.
    fn return_unclaimed(&mut self, keys: Vec<Key>) {
        self.inbox.put_back(keys);
        self.give_up_unless_serving();
    }

    fn give_up_unless_serving(&mut self) {
        if !matches!(self.phase, Phase::Serving) || self.requested.is_none() {
            self.inbox.give_up_waiting();
        }
    }
}
