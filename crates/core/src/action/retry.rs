//! What is tried again of an action: said by its policy, or by the two fields that were there before.

use super::{ActionSpec, OnWorkerLost};
use crate::policy::{RetryRule, TryEnd};
use crate::reject::Reject;

/// How often an action may be tried that does not say it.
pub(crate) const MAX_ATTEMPTS: u32 = 3;

impl ActionSpec {
    /// With `on_worker_lost` and `max_attempts` as they are in force, for whoever knows these alone.
    #[must_use]
    pub fn settled(mut self) -> Self {
        let rule = self.retry();
        let is_retried = rule.on.contains(TryEnd::WorkerLost);
        self.max_attempts = Some(rule.max_attempts);
        self.on_worker_lost = Some(match is_retried {
            true => OnWorkerLost::Retry,
            false => OnWorkerLost::Fail,
        });
        self
    }

    /// What is tried again of its executions. Where the policy says nothing, it is what lost workers
    /// ran, at once.
    pub fn retry(&self) -> RetryRule {
        let lost = self.on_worker_lost.unwrap_or_default() == OnWorkerLost::Retry;
        let lost = lost.then_some(TryEnd::WorkerLost);
        let written = self.policy.retry.unwrap_or_default();
        let is_written = self.policy.retry.is_some();
        let others = [TryEnd::Failed, TryEnd::TimedOut];
        let all = others.into_iter().filter(|_| is_written).chain(lost);
        RetryRule {
            max_attempts: written
                .max_attempts
                .or(self.max_attempts)
                .unwrap_or(MAX_ATTEMPTS),
            on: written.on.unwrap_or_else(|| all.collect()),
            backoff: is_written.then_some(written.backoff),
            hold_slot: written.hold_slot,
        }
    }

    /// Two fields that mean the same may not contradict each other, and no slot is held for longer than it
    /// may be used.
    pub(super) fn check_retry(&self) -> Result<(), Reject> {
        let Some(retry) = self.policy.retry else {
            return Ok(());
        };
        if let (Some(one), Some(other)) = (self.max_attempts, retry.max_attempts)
            && one != other
        {
            let words = format!(
                "`max_attempts` is {one} and `policy.retry.max_attempts` is {other}, and they mean the \
                 same; leave `max_attempts` out"
            );
            return Err(Reject::field("max_attempts", words));
        }
        if let (Some(lost), Some(on)) = (self.on_worker_lost, retry.on)
            && on.contains(TryEnd::WorkerLost) != (lost == OnWorkerLost::Retry)
        {
            let has = match lost {
                OnWorkerLost::Retry => "`retry`, and `policy.retry.on` does not have `worker_lost`",
                OnWorkerLost::Fail => "`fail`, and `policy.retry.on` has `worker_lost`",
            };
            let words = format!("`on_worker_lost` is {has}; leave `on_worker_lost` out");
            return Err(Reject::field("on_worker_lost", words));
        }
        let initial_ms = retry.backoff.initial_ms;
        if retry.hold_slot && initial_ms > u64::from(self.timeout_seconds) * 1_000 {
            let field = "policy.retry.hold_slot";
            let words = format!(
                "`{field}` keeps a slot idle for `policy.retry.backoff.initial_ms` ({initial_ms}), which is \
                 longer than a run may take (`timeout_seconds`, {}); wait for less, or leave `{field}` out",
                self.timeout_seconds
            );
            return Err(Reject::field(field, words));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> ActionSpec {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_is_tried_again_may_be_said_in_two_places_that_agree() {
        let run = r#""ref":"a.b","run":{"program":["/bin/true"]}"#;
        let with = |rest: &str| spec(&format!("{{{run}{rest}}}"));
        let usual = with("").retry();
        assert_eq!((usual.max_attempts, usual.backoff), (3, None));
        let [failed, timed_out, lost] = [TryEnd::Failed, TryEnd::TimedOut, TryEnd::WorkerLost];
        assert!(usual.tries_again(lost, 2) && !usual.tries_again(lost, 3));
        assert!(!usual.tries_again(failed, 1));
        let earlier = with(r#","on_worker_lost":"fail","max_attempts":7"#);
        assert!(!earlier.retry().tries_again(lost, 1));
        assert_eq!(earlier.retry().max_attempts, 7);
        // What is stored of it says the same, also to whoever knows the earlier fields alone.
        for rest in [
            "",
            r#","policy":{"retry":{}}"#,
            r#","policy":{"retry":{"max_attempts":5,"on":["timed_out"]}}"#,
            r#","max_attempts":9,"policy":{"retry":{"backoff":{"initial_ms":5}}}"#,
            r#","on_worker_lost":"fail","policy":{"retry":{}}"#,
        ] {
            let written = with(rest);
            let settled = written.clone().settled();
            assert_eq!(
                (settled.check(), settled.retry()),
                (Ok(()), written.retry())
            );
            assert_eq!(settled.clone().settled(), settled);
            let text = serde_json::to_string(&settled).unwrap();
            assert_eq!(spec(&text), settled);
            assert!(text.contains("max_attempts") && text.contains("on_worker_lost"));
        }
        let all = with(r#","policy":{"retry":{}}"#).retry();
        assert!(
            [failed, timed_out, lost]
                .iter()
                .all(|end| all.tries_again(*end, 2))
        );
        let but_lost = with(r#","on_worker_lost":"fail","policy":{"retry":{}}"#).retry();
        assert!(but_lost.tries_again(failed, 1) && !but_lost.tries_again(lost, 1));
        for (rest, field) in [
            (
                r#","max_attempts":3,"policy":{"retry":{"max_attempts":5}}"#,
                "max_attempts",
            ),
            (
                r#","on_worker_lost":"retry","policy":{"retry":{"on":["failed"]}}"#,
                "on_worker_lost",
            ),
            (
                r#","on_worker_lost":"fail","policy":{"retry":{"on":["worker_lost"]}}"#,
                "on_worker_lost",
            ),
            (
                r#","policy":{"retry":{"max_attempts":0}}"#,
                "policy.retry.max_attempts",
            ),
        ] {
            let refused = with(rest).check().unwrap_err();
            assert_eq!(refused.field.as_deref(), Some(field), "{refused}");
        }
    }

    #[test]
    fn no_slot_is_kept_for_longer_than_a_run_may_take() {
        let text = r#"{"ref":"a.b","run":{"program":["/bin/true"]},"timeout_seconds":3,
            "policy":{"retry":{"hold_slot":true,"backoff":{"initial_ms":3000}}}}"#;
        let mut spec = spec(text);
        assert_eq!(spec.check(), Ok(()));
        assert!(spec.retry().hold_slot);
        let retry = spec.policy.retry.as_mut().unwrap();
        retry.backoff.initial_ms = 3_001;
        let refused = spec.check().unwrap_err();
        assert_eq!(refused.field.as_deref(), Some("policy.retry.hold_slot"));
        assert!(refused.message.contains("3001"), "{refused}");
        spec.policy.retry.as_mut().unwrap().hold_slot = false;
        assert_eq!(spec.check(), Ok(()));
    }
}
