//! What a partition counts for rates, intervals and quotas: checked before it accepts, written with the
//! round that starts or accepts, read when the partition is taken over.

use attune_core::policy::Words;
use attune_core::{Action, ActionId, Bug, Demand, GroupKey, Reject};

use super::Partition;
use crate::policy::{QuotaClaim, QuotaMeter, StartLimit};
use crate::queue::{ActionQueue, Millis};
use crate::stored::{Meter, MeterPlace, StoredMeter};

/// How the names of the limits of actions begin.
const OF_ACTION: &str = "action/";

fn name_of(limit: StartLimit) -> String {
    match limit {
        StartLimit::Rate(0) => "rate_limit".to_owned(),
        StartLimit::Rate(mark) => format!("rate_limit/{mark:016x}"),
        StartLimit::Interval => "min_interval_ms".to_owned(),
    }
}

fn start_limit(name: &str) -> Option<StartLimit> {
    match name.split_once('/') {
        None if name == "rate_limit" => Some(StartLimit::Rate(0)),
        None if name == "min_interval_ms" => Some(StartLimit::Interval),
        Some(("rate_limit", mark)) => {
            let mark = u64::from_str_radix(mark, 16).ok()?;
            Some(StartLimit::Rate(mark.cast_signed()))
        }
        _ => None,
    }
}

impl Partition {
    /// Counts for the quotas of an action as it is from now on.
    pub(super) fn learn_quotas(&mut self, action: &Action) {
        if action.spec.policy.quotas.is_empty() {
            self.quotas.remove(&action.id);
            return;
        }
        let earlier = self.quotas.remove(&action.id).unwrap_or_default();
        let meters = QuotaMeter::of(&action.spec, earlier);
        self.quotas.insert(action.id, meters);
    }

    /// Whether anything is counted, so that what was must be loaded.
    pub(crate) fn counts(&self) -> bool {
        let mut actions = self.actions.values().map(|action| &action.spec.policy);
        actions.any(|policy| {
            policy.rate_limit.is_some()
                || policy.min_interval_ms.is_some()
                || !policy.quotas.is_empty()
        })
    }

    /// Checks that what comes now may be accepted, and says as what its quotas count it.
    pub(super) fn check_counted(
        &mut self,
        now: Millis,
        action: &Action,
        (words, demand): (&Words<'_>, Option<&Demand>),
        is_delayed: bool,
    ) -> Result<Vec<QuotaClaim>, Reject> {
        // What starts later cannot be judged by who has started lately.
        if let Some(rate) = action
            .spec
            .policy
            .rate_limit
            .as_ref()
            .filter(|_| !is_delayed)
        {
            let refused = |queue: &mut ActionQueue| queue.refused_for(now, demand);
            if let Some(wait) = self.queues.with_existing(action.id, refused).flatten() {
                return Err(Reject::rate_limited(rate, wait));
            }
        }
        let Some(meters) = self.quotas.get_mut(&action.id) else {
            return Ok(Vec::new());
        };
        let claims = meters.iter_mut().map(|meter| {
            meter.check(words)?;
            let claim = meter.claim(now, words);
            claim.map_err(|wait| Reject::quota_exceeded(meter.quota(), wait))
        });
        claims.collect()
    }

    /// Counts an acceptance, as it was [checked](Self::check_counted).
    pub(super) fn count_acceptance(&mut self, action_id: ActionId, claims: &[QuotaClaim]) {
        if claims.is_empty() {
            return;
        }
        self.counting.insert(action_id);
        let meters = self.quotas.entry(action_id).or_default();
        for (meter, claim) in meters.iter_mut().zip(claims) {
            meter.count(claim.key);
        }
    }

    /// What was counted in the round under way, to be stored with it, which is written down as of `at`.
    pub(crate) fn counted(&self, at: Millis) -> Vec<Meter> {
        let mut counted = Vec::new();
        for action_id in &self.counting {
            let Some(action) = self.actions.get(action_id) else {
                continue;
            };
            let mut add = |name: &str, key: GroupKey, state: Vec<u8>, expires_at: Millis| {
                counted.push(Meter {
                    partition: self.id,
                    place: MeterPlace {
                        limit_id: format!("{OF_ACTION}{}/{name}", action.spec.action_ref.as_str()),
                        key,
                    },
                    state,
                    expires_at,
                });
            };
            for meter in self.quotas.get(action_id).into_iter().flatten() {
                let name = meter.name();
                for (key, state, until) in meter.fresh() {
                    add(&name, key, state, until);
                }
            }
            let starts = |queue: &mut ActionQueue| queue.counted(at);
            let starts = self.queues.with_existing(*action_id, starts);
            for it in starts.into_iter().flatten() {
                add(&name_of(it.limit), it.key, it.state, it.over_at);
            }
        }
        counted
    }

    /// What was counted in the round under way is stored, since `at` at the latest.
    pub(crate) fn settle_counted(&mut self, at: Millis) {
        for action_id in std::mem::take(&mut self.counting) {
            let settle = |queue: &mut ActionQueue| queue.settle_counted(at);
            self.queues.with_existing(action_id, settle);
            let quotas = self.quotas.get_mut(&action_id).into_iter().flatten();
            quotas.for_each(QuotaMeter::settle);
        }
    }

    /// Takes in what was counted before this partition was taken over. What counts for no limit that is in
    /// force says nothing.
    pub(super) fn recover_meters(&mut self, now: Millis, rows: Vec<StoredMeter>) {
        if Bug::MeterInMemory.is_planted() {
            return;
        }
        for StoredMeter {
            place: MeterPlace { limit_id, key },
            state,
            written_at,
        } in rows
        {
            let of_action = limit_id.strip_prefix(OF_ACTION);
            let Some((action_ref, name)) = of_action.and_then(|id| id.split_once('/')) else {
                continue;
            };
            let Some(action_id) = self.refs.get(action_ref).copied() else {
                continue;
            };
            if let Some(limit) = start_limit(name) {
                let restore = |queue: &mut ActionQueue| {
                    queue.restore_counted(now, (limit, key), (&state, written_at));
                };
                self.queues.with_existing(action_id, restore);
                continue;
            }
            let quotas = self.quotas.get_mut(&action_id).into_iter().flatten();
            for meter in quotas.filter(|meter| meter.name() == name) {
                meter.restore(now, key, &state);
            }
        }
    }
}
