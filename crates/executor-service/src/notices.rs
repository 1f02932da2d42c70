//! Writes into the log what an owner has to say to people.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use attune_core::WorkerId;
use attune_executor::{Notice, Violation};
use attune_runtime::LogPace;

/// A store call that has not failed for so long has worked since: its next failure is news.
const WORKED: Duration = Duration::from_mins(3);

/// The log of an owner. What it says again and again is written ever more rarely.
#[derive(Default)]
pub(crate) struct Notices {
    /// One message may hold thousands of submissions that become dead letters.
    letters: LogPace,
    /// What is said in the name of others comes from anybody, in any number.
    forbidden: LogPace,
    /// Failures of the store by what was asked, and when the last one was.
    store: HashMap<&'static str, (LogPace, Option<Instant>)>,
}

impl Notices {
    /// Writes a line, if it is time for one.
    pub(crate) fn say(&mut self, notice: &Notice) {
        match notice {
            Notice::LetterKept { action_ref, reason } => self.letter_kept(action_ref, reason),
            Notice::Forbidden { worker, user } => self.forbidden(*worker, user),
            Notice::StoreFailed { call, failure } => self.store_failed(call, &failure.words),
            Notice::TakenOver {
                partition,
                epoch,
                elapsed_ms,
            } => {
                tracing::info!(partition.id = %partition, partition.epoch = %epoch, elapsed_ms, "a partition is taken over");
            }
            Notice::Lost(partitions) => {
                tracing::warn!(
                    partitions = partitions.len(),
                    "partitions have another owner"
                );
            }
            Notice::HandOver { partition, to } => {
                let to = to.map(|owner| owner.to_string());
                tracing::info!(partition.id = %partition, executor.id = to, "a partition is handed over");
            }
            Notice::HandOverUnconfirmed(partition) => {
                tracing::warn!(partition.id = %partition, "a partition is handed over before everything is confirmed");
            }
            Notice::Fenced(partitions) => {
                tracing::warn!(
                    partitions = partitions.len(),
                    "a commit is refused: the partitions have another owner"
                );
            }
            Notice::CommitRefused {
                partitions,
                failure,
                again_in,
            } => {
                let partitions = partitions.iter().map(ToString::to_string);
                let partitions = partitions.collect::<Vec<_>>().join(" ");
                tracing::error!(
                    partitions,
                    error = failure.words,
                    again_in_ms = again_in,
                    "the store refuses a round; the same is written again"
                );
            }
            Notice::CommitUnknown {
                partitions,
                failure,
            } => {
                tracing::warn!(
                    partitions = partitions.len(),
                    error = failure.words,
                    "whether a round is stored is unknown; its partitions are loaded again"
                );
            }
            Notice::EpochUsedUp(partition) => {
                tracing::info!(partition.id = %partition, "the epoch of a partition is used up");
            }
            Notice::GaveBack => {
                tracing::warn!(
                    "others may own the partitions by now: their messages are given back"
                );
            }
            Notice::CutOff => {
                tracing::warn!(
                    "the message broker cannot be reached, and other executors can: the partitions are handed over to them"
                );
            }
            Notice::BusIsBack => {
                tracing::info!("the message broker can be reached again; partitions come back");
            }
            Notice::Untrusted => {
                tracing::warn!(
                    "the leases were not renewed in time; nothing is decided until they are"
                );
            }
            Notice::ClockDrift { by } => {
                tracing::error!(
                    drift_ms = by,
                    "the clock of the store was set; timeouts and delayed starts go on by the time it showed before"
                );
            }
            Notice::ClocksDiffer { by } => {
                tracing::error!(
                    difference_ms = by,
                    "the clock of the store and that of this machine differ; until they agree, timeouts and delayed starts go by the earlier one: set the wrong one right"
                );
            }
            Notice::ClocksAgree { by } => {
                tracing::warn!(
                    moved_ms = by,
                    "the clock of the store and that of this machine agree again; where the time has moved, the partitions are loaded again"
                );
            }
            Notice::ForceReleased {
                execution_id,
                attempt,
                action_ref,
                status,
            } => {
                tracing::warn!(execution.id = %execution_id, execution.attempt = %attempt, "action.ref" = action_ref, status = %status, "an operator took a slot back");
            }
            Notice::WorkerLost {
                execution_id,
                attempt,
                worker,
            } => {
                let worker = worker.map(|worker| worker.to_string());
                tracing::warn!(execution.id = %execution_id, execution.attempt = %attempt, worker.id = worker, "the lease of a worker has ended; its slot is taken back");
            }
            Notice::Violation(violation) => log_violation(violation),
            Notice::SlotDiffers { .. }
            | Notice::WaitingDiffers { .. }
            | Notice::ActionWasUnknown { .. }
            | Notice::ActionMissing { .. } => log_difference(notice),
            Notice::ActionHadChanged { action_ref } => {
                tracing::warn!(
                    "action.ref" = action_ref,
                    "an action was changed, and whoever did it has not said so; the change holds from now on"
                );
            }
        }
    }

    /// A submission became a dead letter; the line says how many did since the start.
    fn letter_kept(&mut self, action_ref: &str, reason: &str) {
        if self.letters.is_due() {
            tracing::warn!(
                "action.ref" = action_ref,
                reason,
                times = self.letters.tries(),
                "a submission that cannot be recorded is kept as a dead letter"
            );
        }
    }

    /// Somebody speaks in the name of a worker; the line says how often that happened since the start.
    fn forbidden(&mut self, worker: WorkerId, user: &str) {
        if self.forbidden.is_due() {
            tracing::warn!(
                worker.id = %worker,
                bus.user = user,
                times = self.forbidden.tries(),
                "a user of the broker speaks in the name of a worker that has registered with another one; \
                 nothing of it counts. A worker that registers over HTTP names its user there as `broker_user`"
            );
        }
    }

    /// A call failed; the line says how many times by now.
    fn store_failed(&mut self, call: &'static str, words: &str) {
        let (pace, last) = self.store.entry(call).or_default();
        let now = Instant::now();
        if last.is_some_and(|last| now.duration_since(last) > WORKED) {
            pace.reset();
        }
        *last = Some(now);
        if pace.is_due() {
            tracing::warn!(
                store.call = call,
                error = words,
                tries = pace.tries(),
                "the store does not do what is asked; trying again"
            );
        }
    }
}

/// Memory and store have come apart, which must never happen.
fn log_difference(notice: &Notice) {
    match notice {
        Notice::SlotDiffers {
            execution_id,
            attempt,
            action_ref,
            what,
        } => {
            tracing::error!(execution.id = %execution_id, execution.attempt = %attempt, "action.ref" = action_ref, "memory and store differ on a slot: {what}");
        }
        Notice::WaitingDiffers {
            execution_id,
            action_ref,
            what,
        } => {
            tracing::error!(execution.id = %execution_id, "action.ref" = action_ref, "memory and store differ on an execution: {what}");
        }
        Notice::ActionWasUnknown { action_ref } => {
            tracing::error!(
                "action.ref" = action_ref,
                "the store has executions of an action that this owner had not heard of; it is read now"
            );
        }
        Notice::ActionMissing { action_id } => {
            tracing::error!(action.id = %action_id, "the store has executions of an action that does not exist; they stay as they are until the action is there again");
        }
        _ => {}
    }
}

fn log_violation(violation: &Violation) {
    tracing::error!(
        "action.ref" = violation.action_ref,
        violation = ?violation.broken,
        executions = ?violation.executions,
        execution.attempt = %violation.attempt,
        found_at_ms = violation.found_at,
        queue.length = violation.stats.queue_length,
        queue.active = violation.stats.active_count,
        queue.limit = ?violation.stats.max_concurrent,
        "{}",
        violation.words
    );
}
