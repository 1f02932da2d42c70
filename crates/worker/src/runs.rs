//! What runs right now.

use std::collections::HashMap;
use std::sync::Arc;

use attune_core::{ActionId, Outcome, Status, TraceId, WorkerId};
use attune_dispatch::{Key, Why};
use attune_messages::v1::{Completion, ExecutionCompleted};
use attune_messages::v2::Grant;
use attune_record::{Record, Recorder, now_ns};
use attune_runtime::Spans;
use chrono::{DateTime, TimeDelta, Utc};
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::field::display;

use crate::lease::Life;
use crate::run_span::RunSpan;
use crate::runner::{Began, Ended, Gate, Runner, Stop};

/// The runs that take time, each in a task of its own.
pub(crate) struct Runs {
    runner: Arc<Runner>,
    recorder: Option<Recorder>,
    spans: Spans,
    tasks: JoinSet<Finished>,
    /// What each task runs, so that one that panics is known by name.
    by_task: HashMap<Id, Arc<Running>>,
    stops: HashMap<Key, Stop>,
}

/// What is known of a run before it ends.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) key: Key,
    pub(crate) action_id: ActionId,
    pub(crate) life: Arc<Life>,
    began: Arc<Began>,
    /// Where somebody wants to know of it.
    span: Option<RunSpan>,
    /// Of which trace it is a part.
    trace: Option<TraceId>,
}

/// A run that is over.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) run: Arc<Running>,
    ended: Ended,
    /// When that was, and how long it ran, where it began. The clock may be set meanwhile.
    times: (DateTime<Utc>, Option<TimeDelta>),
}

impl Running {
    fn of(request: &mut Grant, life: &Arc<Life>, spans: &Spans) -> Self {
        Self {
            key: request.key(),
            action_id: request.action_id,
            life: Arc::clone(life),
            began: Arc::new(Began::now()),
            span: RunSpan::of(request, spans),
            trace: request.traceparent.map(|trace| trace.trace_id()),
        }
    }
}

impl Finished {
    fn of(run: Arc<Running>, ended: Ended) -> Self {
        let ran = run.began.elapsed();
        let ran = ran.map(|ran| TimeDelta::from_std(ran).unwrap_or(TimeDelta::MAX));
        let times = (Utc::now(), ran);
        let finished = Self { run, ended, times };
        if let Some(span) = &finished.run.span
            && let Some(times) = finished.began_and_ended()
        {
            span.tell(finished.run.key, times, finished.status_and_code());
        }
        finished
    }

    /// How it ended, where that is known, and the exit code of its program.
    fn status_and_code(&self) -> (Option<Status>, Option<i32>) {
        match &self.ended {
            // After the lease, its guard may have killed it.
            Ended::Outcome(outcome) if !self.run.life.is_over() => {
                (Some(outcome.status), outcome.exit_code)
            }
            _ => (None, None),
        }
    }

    /// When it began and ended.
    fn began_and_ended(&self) -> Option<(DateTime<Utc>, DateTime<Utc>)> {
        let (ended, ran) = self.times;
        Some((ended.checked_sub_signed(ran?)?, ended))
    }

    /// Why it is to be given back, if it was never begun: while its worker's life is not over, only this
    /// worker can say so.
    pub(crate) fn given_back(&self) -> Option<Why> {
        match &self.ended {
            Ended::GivenBack(why) if !self.run.life.is_over() => Some(why.clone()),
            _ => None,
        }
    }

    /// What is reported of it: nothing when it was killed, or when its worker's life is over, so
    /// that its slot is somebody else's to decide about.
    pub(crate) fn into_completion(self) -> Option<ExecutionCompleted> {
        let times = self.began_and_ended();
        match self.ended {
            Ended::Outcome(outcome) if !self.run.life.is_over() => Some(completion(
                self.run.key,
                self.run.action_id,
                self.run.life.worker(),
                outcome,
                times,
            )),
            _ => None,
        }
    }
}

/// The completion of a granted execution that is not run at all.
pub(crate) fn not_run(request: &Grant, life: &Life) -> ExecutionCompleted {
    let key = request.key();
    let outcome = Outcome::cancelled("cancelled before it ran");
    completion(key, request.action_id, life.worker(), outcome, None)
}

fn completion(
    (execution_id, attempt): Key,
    action_id: ActionId,
    worker: WorkerId,
    outcome: Outcome,
    times: Option<(DateTime<Utc>, DateTime<Utc>)>,
) -> ExecutionCompleted {
    ExecutionCompleted(Completion {
        execution_id,
        attempt,
        action_id,
        status: outcome.status,
        result: outcome.result,
        error: outcome.error,
        code: outcome.code,
        exit_code: outcome.exit_code,
        stdout: outcome.stdout,
        stderr: outcome.stderr,
        partition: Some(execution_id.partition()),
        worker: Some(worker),
        broker_user: None,
        started_at: times.map(|times| times.0),
        finished_at: times.map(|times| times.1),
    })
}

impl Runs {
    pub(crate) fn new(runner: Runner, recorder: Option<Recorder>, spans: Spans) -> Self {
        Self {
            runner: Arc::new(runner),
            recorder,
            spans,
            tasks: JoinSet::new(),
            by_task: HashMap::new(),
            stops: HashMap::new(),
        }
    }

    /// Where runs wait while nothing can be started.
    pub(crate) fn gate(&self) -> Gate {
        self.runner.gate().clone()
    }

    /// What runs everything.
    pub(crate) fn runner(&self) -> Arc<Runner> {
        Arc::clone(&self.runner)
    }

    /// Records that a grant is taken to be begun.
    pub(crate) fn record_taken(&self, (execution_id, attempt): Key, worker: WorkerId) {
        if let Some(recorder) = &self.recorder {
            recorder.record(Record::Taken {
                execution_id,
                attempt,
                worker,
                pid: Some(std::process::id()),
                t_ns: now_ns(),
            });
        }
    }

    /// Records that the lease of a worker is lost.
    pub(crate) fn record_lost(&self, worker: WorkerId) {
        if let Some(recorder) = &self.recorder {
            let t_ns = now_ns();
            recorder.record(Record::WorkerLost { worker, t_ns });
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_task.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_task.is_empty()
    }

    /// Those that wait for their start, because their worker can start nothing.
    pub(crate) fn unbegun(&self) -> impl Iterator<Item = Key> + '_ {
        let runs = self.by_task.values();
        let unbegun = runs.filter(|run| run.began.elapsed().is_none());
        unbegun.map(|run| run.key)
    }

    /// How many belong to a life that is over, and so should be gone.
    pub(crate) fn overdue(&self) -> usize {
        self.by_task
            .values()
            .filter(|run| run.life.is_over())
            .count()
    }

    /// Runs. What takes no time is finished when this returns, without a task.
    pub(crate) fn start(&mut self, mut request: Grant, life: &Arc<Life>) -> Option<Finished> {
        let run = Running::of(&mut request, life, &self.spans);
        let began_ns = now_ns();
        if let Some(outcome) = self.runner.instant(&request) {
            record_start(self.recorder.as_ref(), &run, began_ns);
            record_end(self.recorder.as_ref(), &run, Some(outcome.status));
            let ended = Ended::Outcome(outcome);
            return Some(Finished::of(Arc::new(run), ended));
        }
        let stop = Stop {
            cancel: CancellationToken::new(),
            over: life.over().child_token(),
        };
        let run = Arc::new(run);
        self.stops.insert(run.key, stop.clone());
        let task = self.tasks.spawn(attend(
            Arc::clone(&self.runner),
            self.recorder.clone(),
            request,
            Arc::clone(&run),
            stop,
        ));
        self.by_task.insert(task.id(), run);
        None
    }

    /// Ends a run if it is here.
    pub(crate) fn cancel(&self, key: &Key) {
        if let Some(stop) = self.stops.get(key) {
            stop.cancel.cancel();
        }
    }

    /// Kills a run if it is here: it holds no slot any more.
    pub(crate) fn kill(&self, key: &Key) {
        if let Some(stop) = self.stops.get(key) {
            stop.over.cancel();
        }
    }

    /// The next run that is over; `None` when nothing runs. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Finished> {
        let (id, finished) = match self.tasks.join_next_with_id().await? {
            Ok((id, finished)) => (id, Ok(finished)),
            Err(fault) => (fault.id(), Err(fault)),
        };
        let run = self.by_task.remove(&id)?;
        self.stops.remove(&run.key);
        Some(finished.unwrap_or_else(|fault| {
            let execution_id = run.key.0;
            let trace = run.trace.map(display);
            tracing::error!(execution.id = %execution_id, trace_id = trace, %fault, "a run ended by a fault");
            let outcome = Outcome::failed("the worker failed while running it");
            Finished::of(run, Ended::Outcome(outcome))
        }))
    }
}

async fn attend(
    runner: Arc<Runner>,
    recorder: Option<Recorder>,
    request: Grant,
    run: Arc<Running>,
    stop: Stop,
) -> Finished {
    let (execution_id, attempt) = run.key;
    let trace = run.trace.map(display);
    tracing::debug!(
        execution.id = %execution_id,
        execution.attempt = %attempt,
        trace_id = trace,
        "action.ref" = request.action_ref,
        "a run begins"
    );
    record_start(recorder.as_ref(), &run, now_ns());
    let began = Arc::clone(&run.began);
    let ended = runner.run(&request, run.life.worker(), began, stop).await;
    let status = match &ended {
        // After the lease, its guard may have killed it.
        Ended::Outcome(outcome) if !run.life.is_over() => Some(outcome.status),
        _ => None,
    };
    record_end(recorder.as_ref(), &run, status);
    tracing::debug!(
        execution.id = %execution_id,
        execution.attempt = %attempt,
        trace_id = trace,
        status = status.map_or("killed", Status::as_str),
        "a run is over"
    );
    Finished::of(run, ended)
}

fn record_start(recorder: Option<&Recorder>, run: &Running, t_ns: i64) {
    let (execution_id, attempt) = run.key;
    if let Some(recorder) = recorder {
        recorder.record(Record::Start {
            execution_id,
            attempt,
            action_id: run.action_id,
            t_ns,
        });
    }
}

fn record_end(recorder: Option<&Recorder>, run: &Running, status: Option<Status>) {
    let (execution_id, attempt) = run.key;
    let action_id = run.action_id;
    if let Some(recorder) = recorder {
        let t_ns = now_ns();
        recorder.record(Record::End {
            execution_id,
            attempt,
            action_id,
            status,
            t_ns,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use attune_core::{Attempt, Builtin, ExecutionId, Resources, Run};
    use attune_runtime::Counter;

    use super::*;
    use crate::clock::BootInstant;
    use crate::guard::Guard;
    use crate::options::WorkerOptions;

    fn request(builtin: Builtin) -> Grant {
        Grant {
            execution_id: ExecutionId(1),
            attempt: Attempt(1),
            action_id: ActionId(1),
            action_ref: "core.any".to_owned(),
            parameters: serde_json::value::to_raw_value(&serde_json::json!({"seconds": 0}))
                .unwrap(),
            run: Run::Builtin(builtin),
            timeout_seconds: 1,
            env: BTreeMap::new(),
            resources: Resources::default(),
            slots: None,
            traceparent: None,
        }
    }

    fn runs() -> Runs {
        let guard = Guard::start(Vec::new());
        Runs::new(
            Runner::new(&WorkerOptions::default(), guard, Counter::default()),
            None,
            Spans::default(),
        )
    }

    fn life(trusted: Duration) -> Arc<Life> {
        Arc::new(Life::new(WorkerId::fresh(), BootInstant::now() + trusted))
    }

    #[tokio::test]
    async fn nothing_is_reported_of_a_life_that_is_over_however_the_run_ended() {
        let hour = Duration::from_secs(3600);
        let ended = life(hour);
        ended.end();
        // Nobody has noticed yet that this one is no longer trusted.
        let expired = life(Duration::ZERO);
        for (life, reported) in [(life(hour), true), (ended, false), (expired, false)] {
            let instant = runs().start(request(Builtin::Noop), &life).unwrap();
            assert_eq!(instant.into_completion().is_some(), reported);
            let mut runs = runs();
            assert!(runs.start(request(Builtin::Sleep), &life).is_none());
            assert_eq!((runs.len(), runs.overdue()), (1, usize::from(!reported)));
            let slow = runs.next().await.unwrap();
            assert_eq!(slow.into_completion().is_some(), reported);
            assert!(runs.is_empty() && runs.next().await.is_none());
        }
    }

    #[tokio::test]
    async fn a_run_that_panics_frees_its_slot_and_fails() {
        let mut runs = runs();
        let life = life(Duration::from_secs(3600));
        let run = Arc::new(Running::of(
            &mut request(Builtin::Sleep),
            &life,
            &Spans::default(),
        ));
        let task = runs.tasks.spawn(async { panic!("a fault for the test") });
        runs.by_task.insert(task.id(), Arc::clone(&run));
        runs.stops.insert(run.key, Stop::default());
        let completion = runs.next().await.unwrap().into_completion().unwrap().0;
        assert_eq!((completion.execution_id, completion.attempt), run.key);
        assert_eq!(completion.status, Status::Failed);
        assert_eq!(
            completion.error.as_deref(),
            Some("the worker failed while running it")
        );
        assert!(runs.is_empty() && runs.stops.is_empty());
    }
}
