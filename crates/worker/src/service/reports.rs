//! What owners are told beside the ends of runs.
//!
//! One publish at a time: what there is to say meanwhile gathers in the entries, which repeat
//! everything that matters until it is settled. So a report that is lost, or that nobody is there
//! to receive, is dropped.

use std::sync::Arc;
use std::time::Duration;

use attune_bus::{Outgoing, Topic};
use attune_core::WorkerId;
use attune_dispatch::{Millis, Report};
use attune_messages::encode;
use attune_messages::v2::{ReturnedGrant, StartedGrant, WorkerReport};
use chrono::Utc;
use tokio::time::Instant;
use uuid::Uuid;

use super::Service;
use crate::clock::BootInstant;

/// How often time is looked at while anything runs or waits.
const TICK: Duration = Duration::from_millis(20);
/// The same while something is only to be repeated.
const SLOW_TICK: Duration = Duration::from_millis(250);
/// What a grant takes in a report, in bytes, at most.
const GRANT_BYTES: usize = 256;
/// What everything else takes in a report: every partition may be named in it.
const FRAME_BYTES: usize = 2048;

impl Service {
    /// Milliseconds since the service began.
    pub(super) fn now(&self) -> Millis {
        let passed = self.began.elapsed().as_millis();
        Millis::try_from(passed).unwrap_or(Millis::MAX)
    }

    /// Time has passed: what has waited for too long is given back, and reports may be due.
    pub(super) fn ticked(&mut self) {
        self.pending.tick_at = None;
        self.pending.has_ticked = true;
        let now = self.now();
        // Slots taken back by force, and those of a life before, are free when their runs have ended.
        let left = self.runs.len().saturating_sub(self.entries.running());
        self.entries.give_back_late(now, left);
    }

    /// Reports what is to be reported, and says when to look again.
    pub(super) fn report(&mut self) {
        let is_due = self.pending.has_ticked || self.entries.has_news();
        if is_due
            && self.pending.reporting.is_none()
            && let Some(worker) = self.who_reports()
        {
            self.pending.has_ticked = false;
            let now = self.now();
            if self.runs.runner().waiting() > 0 {
                for key in self.runs.unbegun() {
                    self.entries.put_off(key, now);
                }
            }
            let reports = self.entries.reports(now);
            let max_bytes = self.options.max_message_bytes;
            let messages = reports
                .into_iter()
                .flat_map(|report| messages_of(report, worker, max_bytes));
            self.publish_reports(messages.collect());
        }
        self.look_again();
    }

    /// The life that may say something.
    fn who_reports(&self) -> Option<WorkerId> {
        // Also one whose runs were killed because the time to drain was over.
        let life = self.life.as_ref().or(self.pending.killed.as_ref())?;
        (BootInstant::now() < life.trusted_until()).then(|| life.worker())
    }

    fn publish_reports(&mut self, messages: Vec<Outgoing>) {
        if messages.is_empty() {
            return;
        }
        let bus = Arc::clone(&self.bus);
        self.pending.reporting = Some(tokio::spawn(async move {
            if let Err(error) = bus.publish(messages).await {
                tracing::debug!(%error, "reports are lost; what matters is repeated");
            }
        }));
    }

    fn look_again(&mut self) {
        let has_changed = std::mem::take(&mut self.pending.has_changed);
        let is_busy = self.entries.waiting() + self.entries.running() > 0;
        let pause = if has_changed || is_busy {
            TICK
        } else if self.entries.awaits() {
            SLOW_TICK
        } else {
            return;
        };
        let at = Instant::now() + pause;
        let earlier = self.pending.tick_at.filter(|earlier| *earlier < at);
        self.pending.tick_at = Some(earlier.unwrap_or(at));
    }
}

/// One message, or several where one could not hold everything.
fn messages_of(report: Report, worker: WorkerId, max_bytes: usize) -> Vec<Outgoing> {
    let room = max_bytes.saturating_sub(FRAME_BYTES) / GRANT_BYTES;
    let room = room.max(1);
    let owner = report.owner;
    let mut parts = vec![WorkerReport {
        worker,
        elsewhere: report.elsewhere,
        returned: Vec::new(),
        started: Vec::new(),
        resync: report.resync,
    }];
    let mut used = 0;
    let mut part = |parts: &mut Vec<WorkerReport>| {
        if used == room {
            used = 0;
            parts.push(WorkerReport {
                worker,
                elsewhere: report.elsewhere,
                returned: Vec::new(),
                started: Vec::new(),
                resync: Vec::new(),
            });
        }
        used += 1;
        parts.len() - 1
    };
    for returned in report.returned {
        let (execution_id, attempt) = returned.key;
        let at = part(&mut parts);
        parts[at].returned.push(ReturnedGrant {
            execution_id,
            attempt,
            why: returned.why.words.to_owned(),
            lacks_key: returned.why.lacks_key.as_deref().map(str::to_owned),
        });
    }
    for started in report.started {
        let (execution_id, attempt) = started.key;
        let at = part(&mut parts);
        parts[at].started.push(StartedGrant {
            execution_id,
            attempt,
            age_ms: u64::try_from(started.age).unwrap_or(0),
        });
    }
    let messages = parts.into_iter().map(|part| {
        let id = Uuid::now_v7();
        Outgoing::new(Topic::Reports(owner), id, encode(id, Utc::now(), &[part]))
    });
    messages.collect()
}

#[cfg(test)]
mod tests {
    use attune_core::{Attempt, ExecutionId, OwnerId, PartitionId};
    use attune_dispatch::{Returned, Started};
    use attune_messages::decode_batch;

    use super::*;

    #[test]
    fn a_report_that_no_message_can_hold_is_split() {
        const MAX: usize = 4096;
        let key = |id| (ExecutionId(i64::MAX - id), Attempt(i32::MAX));
        let report = Report {
            owner: OwnerId::fresh(),
            elsewhere: u32::MAX,
            returned: (0..20)
                .map(|id| Returned {
                    key: key(id),
                    why: "a reason of some sixty letters that says why it was given back".into(),
                })
                .collect(),
            started: (20..40)
                .map(|id| Started {
                    key: key(id),
                    age: Millis::MAX,
                })
                .collect(),
            resync: (0..=255).map(PartitionId).collect(),
        };
        let (mut returned, mut started, mut resync) = (0, 0, 0);
        let messages = messages_of(report.clone(), WorkerId::fresh(), MAX);
        assert!(messages.len() > 1);
        for message in messages {
            assert_eq!(message.topic, Topic::Reports(report.owner));
            for part in decode_batch::<WorkerReport>(&message.body, MAX).unwrap() {
                returned += part.returned.len();
                started += part.started.len();
                resync += part.resync.len();
            }
        }
        assert_eq!((returned, started, resync), (20, 20, 256));
        let all = messages_of(report, WorkerId::fresh(), 1 << 20);
        assert_eq!(all.len(), 1);
    }
}
