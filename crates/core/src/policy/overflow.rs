//! What becomes of executions that come when a limit is reached, or the queue is full.

use serde::{Deserialize, Serialize};

use super::{ActionPolicy, check_count};
use crate::reject::Reject;

/// What becomes of an execution that comes when the queue of its action is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// It is refused.
    #[default]
    Reject,
    /// It is accepted, and who has waited longest of the lowest priority ends in its place.
    DropOldest,
}

/// What becomes of an execution that comes when the limit of its action, or of its group, is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// It waits.
    #[default]
    Wait,
    /// It is refused.
    Reject,
    /// It waits; whoever of its group waits ends in its place, and as many of those who run are asked to
    /// end as it takes for it to have room.
    CancelRunning,
    /// It waits, and whoever of its group waits ends in its place.
    ReplaceWaiting,
}

impl OnLimit {
    /// Whether a newcomer takes the place of those of its group who wait.
    #[must_use]
    pub fn replaces(self) -> bool {
        matches!(self, Self::CancelRunning | Self::ReplaceWaiting)
    }
}

impl ActionPolicy {
    /// Checks what is said about full queues and reached limits.
    pub(super) fn check_overflow(&self) -> Result<(), Reject> {
        let field = "policy.per_user_limit";
        check_count(field, self.per_user_limit, "as many of one user as come")?;
        let on_limit = self.concurrency.on_limit.unwrap_or_default();
        let field = "policy.concurrency.on_limit";
        let has_limit = self.concurrency.limit.or(self.concurrency.group_limit);
        if on_limit != OnLimit::Wait && has_limit.is_none() {
            let words = format!(
                "`{field}` says what happens when a limit is reached, and there is none; add \
                 `policy.concurrency.limit` or leave it out"
            );
            return Err(Reject::field(field, words));
        }
        let on_full = self.queue.on_full.unwrap_or_default();
        if on_full == OnFull::DropOldest && on_limit.replaces() {
            let field = "policy.queue.on_full";
            let words = format!(
                "`{field}: drop_oldest` does not go together with `policy.concurrency.on_limit: \
                 {}`, which ends those of the newcomer's own group already; leave one of the two out",
                match on_limit {
                    OnLimit::CancelRunning => "cancel_running",
                    _ => "replace_waiting",
                }
            );
            return Err(Reject::field(field, words));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(text: &str) -> Option<String> {
        let policy: ActionPolicy = serde_json::from_str(text).unwrap();
        policy.check(None).err().map(|reject| reject.field.unwrap())
    }

    #[test]
    fn what_cannot_be_meant_names_its_field() {
        for right in [
            r#"{"concurrency": {"limit": 2, "on_limit": "reject"}, "queue": {"on_full": "drop_oldest"}}"#,
            r#"{"concurrency": {"group_by": ["user"], "group_limit": 1, "on_limit": "cancel_running"}}"#,
            r#"{"concurrency": {"limit": 1, "on_limit": "replace_waiting"}, "queue": {"on_full": "reject"}}"#,
            r#"{"concurrency": {"limit": 1, "on_limit": "cancel_running"},
                "rate_limit": {"max_executions": 1, "window_seconds": 1, "by": ["user"]}}"#,
            r#"{"concurrency": {"on_limit": "wait"}, "per_user_limit": 100}"#,
        ] {
            assert_eq!(field(right), None, "{right}");
        }
        for (wrong, place) in [
            (
                r#"{"concurrency": {"on_limit": "reject"}}"#,
                "policy.concurrency.on_limit",
            ),
            (
                r#"{"concurrency": {"limit": 1, "on_limit": "replace_waiting"}, "queue": {"on_full": "drop_oldest"}}"#,
                "policy.queue.on_full",
            ),
            (
                r#"{"concurrency": {"limit": 1, "on_limit": "cancel_running"}, "queue": {"on_full": "drop_oldest"}}"#,
                "policy.queue.on_full",
            ),
            (r#"{"per_user_limit": 0}"#, "policy.per_user_limit"),
        ] {
            assert_eq!(field(wrong).as_deref(), Some(place), "{wrong}");
        }
        let unknown = r#"{"queue": {"on_full": "drop_newest"}}"#;
        let error = serde_json::from_str::<ActionPolicy>(unknown).unwrap_err();
        assert!(error.to_string().contains("drop_oldest"), "{error}");
    }
}
