//! Asks for executions and notes when it asked and when it was answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use attune_commands::{ClientError, CommandClient};
use attune_core::{ExecutionId, Priority, RequestId, Submission};
use attune_record::{Record, now_ns};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::scenario::{Pace, Scenario};

/// How patient the load is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// How long one try waits for its answer.
    pub answer_within: Duration,
    /// How long a request is repeated, under the same request id, until its outcome is known.
    pub give_up_after: Duration,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            answer_within: Duration::from_secs(10),
            give_up_after: Duration::from_secs(60),
        }
    }
}

/// Between two tries of a request that the client could not take or that nobody answered.
const PAUSE: Duration = Duration::from_millis(50);

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmitOutcome {
    /// It was accepted as this execution.
    Accepted(ExecutionId),
    /// It was refused, for this reason.
    Refused(String),
    /// Nobody knows: it may have been accepted.
    Undecided(String),
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// Its place in the scenario.
    pub index: usize,
    /// Its request id.
    pub request_id: RequestId,
    /// When it was handed to the client, or should have been: in an open loop this is the time
    /// of the schedule.
    pub invoked_ns: i64,
    /// When its outcome was known. The answers of a pack count as known together.
    pub answered_ns: i64,
    /// What became of it.
    pub outcome: SubmitOutcome,
}

/// Everything that was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Load {
    /// The requests, by index. Fewer than the scenario has when the load was stopped.
    pub submitted: Vec<Submitted>,
}

impl Load {
    /// What was accepted.
    pub fn accepted(&self) -> impl Iterator<Item = (ExecutionId, &Submitted)> {
        self.submitted
            .iter()
            .filter_map(|submitted| match submitted.outcome {
                SubmitOutcome::Accepted(id) => Some((id, submitted)),
                _ => None,
            })
    }

    /// The same as records, as a client of its own would have written them.
    pub fn records<'a>(&'a self, scenario: &'a Scenario) -> impl Iterator<Item = Record> + 'a {
        self.submitted.iter().flat_map(|submitted| {
            let request_id = submitted.request_id;
            let invoke = Record::SubmitInvoke {
                request_id,
                action_ref: scenario.action_ref(scenario.action_of(submitted.index)),
                priority: scenario
                    .asker(submitted.index)
                    .map_or(Priority::Normal, |asker| asker.priority),
                delayed: false,
                requested_by: None,
                t_ns: submitted.invoked_ns,
            };
            let t_ns = submitted.answered_ns;
            let answer = match &submitted.outcome {
                SubmitOutcome::Accepted(execution_id) => Record::SubmitOk {
                    request_id,
                    execution_id: *execution_id,
                    t_ns,
                },
                SubmitOutcome::Refused(code) => Record::SubmitFail {
                    request_id,
                    code: code.clone(),
                    t_ns,
                },
                SubmitOutcome::Undecided(_) => Record::SubmitInfo { request_id, t_ns },
            };
            [invoke, answer]
        })
    }
}

/// By which way executions are asked for.
pub trait Way: Clone + Send + Sync + 'static {
    /// Asks once for each of these and tells what became of it, in their order.
    fn ask(
        &self,
        submissions: Vec<Submission>,
        answer_within: Duration,
    ) -> impl Future<Output = Vec<SubmitOutcome>> + Send;
}

/// Straight to the owners of the partitions, as the API asks them.
impl Way for CommandClient {
    async fn ask(
        &self,
        submissions: Vec<Submission>,
        answer_within: Duration,
    ) -> Vec<SubmitOutcome> {
        let results = self.submit_many(submissions, answer_within).await;
        results.into_iter().map(outcome).collect()
    }
}

/// Asks for the executions of a scenario and returns when every outcome is known, or given up.
/// `progress` counts the outcomes. When `stop` is cancelled no further request begins.
pub async fn run<W: Way>(
    way: &W,
    scenario: &Scenario,
    options: LoadOptions,
    stop: &CancellationToken,
    progress: &Arc<AtomicUsize>,
) -> Load {
    let generator = Generator {
        way: way.clone(),
        scenario: scenario.clone(),
        options,
        stop: stop.clone(),
        progress: Arc::clone(progress),
    };
    let mut submitted = match scenario.pace {
        Pace::Closed { in_flight, pack } => generator.closed(in_flight, pack).await,
        Pace::Open { .. } => generator.open().await,
    };
    submitted.sort_by_key(|submitted| submitted.index);
    Load { submitted }
}

#[derive(Clone)]
struct Generator<W> {
    way: W,
    scenario: Scenario,
    options: LoadOptions,
    stop: CancellationToken,
    progress: Arc<AtomicUsize>,
}

impl<W: Way> Generator<W> {
    /// So many tasks as packs may be in flight; each takes the next indices when its last pack
    /// was answered.
    async fn closed(&self, in_flight: usize, pack: usize) -> Vec<Submitted> {
        let pack = pack.max(1);
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..(in_flight / pack).max(1) {
            let (generator, next) = (self.clone(), Arc::clone(&next));
            tasks.spawn(async move {
                let mut submitted = Vec::new();
                while !generator.stop.is_cancelled() {
                    let first = next.fetch_add(pack, Ordering::Relaxed);
                    let indices = first..(first + pack).min(generator.scenario.executions);
                    if indices.is_empty() {
                        break;
                    }
                    submitted.extend(generator.submit(indices, now_ns()).await);
                }
                submitted
            });
        }
        collect(tasks).await
    }

    /// One task for each request, begun on schedule. Their number is bounded by the scenario,
    /// their requests without an answer by the client.
    async fn open(&self) -> Vec<Submitted> {
        let begin_ns = now_ns();
        let mut tasks = JoinSet::new();
        let mut dues = self.dues();
        loop {
            let (index, due) = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                due = dues.recv() => match due {
                    Some(due) => due,
                    None => break,
                },
            };
            let due_ns = begin_ns + i64::try_from(due.as_nanos()).unwrap_or(i64::MAX / 2);
            let generator = self.clone();
            tasks.spawn(async move { generator.submit(index..index + 1, due_ns).await });
        }
        collect(tasks).await
    }

    /// Tells each request when it is due, from a thread of its own: the clock of the runtime counts in
    /// milliseconds and rounds up, which would be part of every delay.
    fn dues(&self) -> mpsc::Receiver<(usize, Duration)> {
        let (due, dues) = mpsc::channel(1_024);
        let scenario = self.scenario.clone();
        let begin = std::time::Instant::now();
        std::thread::spawn(move || {
            for index in 0..scenario.executions {
                let at = scenario.due(index).unwrap_or_default();
                std::thread::sleep(at.saturating_sub(begin.elapsed()));
                if due.blocking_send((index, at)).is_err() {
                    return;
                }
            }
        });
        dues
    }

    /// Asks for some executions until each outcome is known, or given up.
    async fn submit(&self, indices: std::ops::Range<usize>, invoked_ns: i64) -> Vec<Submitted> {
        let give_up = Instant::now() + self.options.give_up_after;
        let mut known = HashMap::with_capacity(indices.len());
        let mut open: Vec<_> = indices.map(|index| (index, RequestId::fresh())).collect();
        loop {
            let submissions = open
                .iter()
                .map(|(index, id)| self.submission(*index, *id))
                .collect();
            let outcomes = self.way.ask(submissions, self.options.answer_within).await;
            let last = Instant::now() >= give_up || self.stop.is_cancelled();
            let answered_ns = now_ns();
            let mut again = Vec::new();
            for ((index, request_id), outcome) in open.into_iter().zip(outcomes) {
                match outcome {
                    SubmitOutcome::Undecided(_) if !last => again.push((index, request_id)),
                    outcome => {
                        let submitted = Submitted {
                            index,
                            request_id,
                            invoked_ns,
                            answered_ns,
                            outcome,
                        };
                        known.insert(index, submitted);
                        self.progress.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            if again.is_empty() {
                return known.into_values().collect();
            }
            tracing::debug!(
                count = again.len(),
                "requests without an outcome; repeating them"
            );
            open = again;
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn submission(&self, index: usize, request_id: RequestId) -> Submission {
        let action_ref = self.scenario.action_ref(self.scenario.action_of(index));
        let mut submission = Submission {
            request_id: Some(request_id),
            ..Submission::new(action_ref)
        };
        if let Some(asker) = self.scenario.asker(index) {
            submission.priority = Some(asker.priority);
            submission.requested_by = Some(asker.user);
            submission.labels.insert("key".to_owned(), asker.key);
        }
        if let Some(parameters) = self.scenario.parameters() {
            submission.parameters = parameters;
        }
        submission
    }
}

/// What one try says. Only a refusal and an acceptance are final.
fn outcome(result: Result<attune_messages::v1::Accepted, ClientError>) -> SubmitOutcome {
    match result {
        Ok(accepted) => match accepted.execution_id {
            Some(id) => SubmitOutcome::Accepted(id),
            None => SubmitOutcome::Refused("accepted, but without an execution id".to_owned()),
        },
        Err(ClientError::Rejected(reject)) => SubmitOutcome::Refused(reject.to_string()),
        Err(error) => SubmitOutcome::Undecided(error.to_string()),
    }
}

/// What the tasks return; a panic of one is a panic here.
async fn collect(mut tasks: JoinSet<Vec<Submitted>>) -> Vec<Submitted> {
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(submitted) => all.extend(submitted),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    all
}
