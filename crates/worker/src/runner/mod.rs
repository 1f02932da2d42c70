//! Runs one execution and says how it ended.
//!
//! A run ends by itself or by one of three causes: it ran too long, it is cancelled, or the
//! worker may not go on (its lease is lost, or its time to drain is over). After the last of
//! these nothing is reported: whoever takes the slot back decides what happens next.

mod capture;
mod fetch;
mod http;
mod keyless;
mod limits;
mod process;
mod program;
mod room;
mod start;
mod vault;

#[cfg(test)]
mod secret_tests;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use attune_core::{Builtin, Outcome, Run, Status, WorkerId};
use attune_dispatch::Why;
use attune_messages::v2::Grant;
use attune_runtime::Counter;
use attune_secrets::Secrets;
use serde::Deserialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::containment::Containment;
use crate::guard::Guard;
use crate::options::WorkerOptions;
use fetch::Fetches;
use http::Get;
use keyless::Keyless;
use limits::Exceeded;
use program::Programs;
use vault::{Missing, Vault};

pub use fetch::run_http;
pub(crate) use room::{PARAMETERS, Room};
pub(crate) use start::Gate;

/// How a run is over.
#[derive(Debug)]
pub(crate) enum Ended {
    /// With something to report.
    Outcome(Outcome),
    /// Killed because the worker may not go on: nothing is reported.
    Killed,
    /// It was never begun, and its slot is given back, for this reason.
    GivenBack(Why),
}

/// What owners are told of what waited for its start for too long.
const STUCK: &str = "it was never begun: its worker could start nothing for too long";
/// What owners are told of what cannot be opened here.
const KEYLESS: &str =
    "it was never begun: its worker lacks the key with which its parameters are sealed";

/// Why a run is ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The worker may not go on.
    Killed,
    /// It is cancelled.
    Cancelled,
    /// It ran longer than it may.
    TimedOut,
    /// It took more than it may.
    Exceeded(Exceeded),
}

/// By which a run is ended from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    /// The execution is cancelled.
    pub(crate) cancel: CancellationToken,
    /// The worker may not go on; ends the run at once.
    pub(crate) over: CancellationToken,
}

/// When a run has begun, by a clock that nobody sets; not yet where it waits for its start.
#[derive(Debug)]
pub(crate) struct Began(Mutex<Option<Instant>>);

impl Began {
    pub(crate) fn now() -> Self {
        Self(Mutex::new(Some(Instant::now())))
    }

    /// How long ago that was.
    pub(crate) fn elapsed(&self) -> Option<Duration> {
        self.at().map(|at| at.elapsed())
    }

    fn at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a run may take, and what ends it earlier.
struct Bounds {
    /// Under whose lease it runs.
    worker: WorkerId,
    began: Arc<Began>,
    stop: Stop,
    timeout: Duration,
    deadline: Instant,
}

impl Bounds {
    /// It waits for its start.
    fn wait(&self) {
        *self.began.at() = None;
    }

    /// Begins the time that the run may take anew.
    fn restart(&mut self) {
        let now = Instant::now();
        *self.began.at() = Some(now);
        self.deadline = now + self.timeout;
    }

    /// Waits until something ends the run from outside.
    async fn cause(&self) -> Cause {
        tokio::select! {
            biased;
            () = self.stop.over.cancelled() => Cause::Killed,
            () = self.stop.cancel.cancelled() => Cause::Cancelled,
            () = tokio::time::sleep_until(self.deadline) => Cause::TimedOut,
        }
    }

    /// Runs something that may be dropped at any point.
    async fn within(&self, run: impl Future<Output = Outcome>) -> Ended {
        tokio::select! {
            biased;
            cause = self.cause() => self.ended_by(cause, Outcome::of(Status::Failed, None)),
            outcome = run => Ended::Outcome(outcome),
        }
    }

    /// `outcome` with the status and error of a run that was ended by `cause`.
    fn ended_by(&self, cause: Cause, outcome: Outcome) -> Ended {
        match cause {
            Cause::Killed => Ended::Killed,
            Cause::Cancelled => Ended::Outcome(Outcome {
                status: Status::Cancelled,
                error: Some("cancelled while it ran".to_owned()),
                ..outcome
            }),
            Cause::Exceeded(what) => Ended::Outcome(Outcome {
                status: Status::Failed,
                code: Some(what.code()),
                error: Some(what.to_string()),
                ..outcome
            }),
            Cause::TimedOut => Ended::Outcome(Outcome {
                status: Status::TimedOut,
                error: Some(format!("it ran longer than {} s", self.timeout.as_secs())),
                ..outcome
            }),
        }
    }
}

/// Knows how to run everything that an action can ask for.
pub(crate) struct Runner {
    containment: Containment,
    programs: Programs,
    fetches: Fetches,
    vault: Vault,
    keyless: Keyless,
}

impl Runner {
    /// Counts in `keyless` what it gives back because it lacks a key.
    pub(crate) fn new(options: &WorkerOptions, guard: Arc<Guard>, keyless: Counter) -> Self {
        let programs = Programs::new(options, guard);
        Self {
            containment: options.containment.clone(),
            fetches: Fetches::new(options, &programs),
            vault: Vault::new(&options.secrets),
            keyless: Keyless::new(keyless),
            programs,
        }
    }

    /// Where runs wait while nothing can be started.
    pub(crate) fn gate(&self) -> &Gate {
        self.programs.gate()
    }

    /// What was sealed with keys that this worker lacks.
    pub(crate) fn keyless(&self) -> &Keyless {
        &self.keyless
    }

    /// How many runs wait here and have not begun.
    pub(crate) fn waiting(&self) -> usize {
        self.gate().waiting() + self.keyless.held()
    }

    /// Whether programs can be started, and if not, why.
    pub(crate) async fn look(&self) -> Result<(), String> {
        self.programs.look().await
    }

    /// The outcome of what takes no time and so needs neither a task nor a way to end it.
    pub(crate) fn instant(&self, request: &Grant) -> Option<Outcome> {
        if let Run::Builtin(builtin) = &request.run
            && let Some(why) = self.containment.refuses_builtin(*builtin)
        {
            return Some(Outcome::failed(why));
        }
        let outcome: fn(&Grant) -> Outcome = match &request.run {
            Run::Builtin(Builtin::Noop) => return Some(Outcome::succeeded(None)),
            Run::Builtin(Builtin::Echo) => echo,
            Run::Builtin(Builtin::Fail) => fail,
            _ => return None,
        };
        match self.vault.open(request) {
            Ok((request, secrets)) => Some(secrets.hide_outcome(outcome(&request))),
            Err(Missing::Secret(outcome)) => Some(outcome),
            // It takes time to give it back.
            Err(Missing::Key { .. }) => None,
        }
    }

    /// Runs to the end, whatever ends it; nothing of the run is left when this returns.
    pub(crate) async fn run(
        &self,
        request: &Grant,
        worker: WorkerId,
        began: Arc<Began>,
        stop: Stop,
    ) -> Ended {
        if let Some(outcome) = self.instant(request) {
            return Ended::Outcome(outcome);
        }
        let timeout = Duration::from_secs(u64::from(request.timeout_seconds));
        let bounds = Bounds {
            worker,
            began,
            stop,
            timeout,
            deadline: Instant::now() + timeout,
        };
        let (request, secrets) = match self.vault.open_all(request).await {
            Ok((request, secrets)) => (request, secrets),
            Err(Missing::Secret(outcome)) => return Ended::Outcome(outcome),
            Err(Missing::Key { id, why }) => {
                return self.give_back(request, (&id, &why), &bounds).await;
            }
        };
        match self.run_opened((&request, &secrets), bounds).await {
            Ended::Outcome(outcome) => Ended::Outcome(secrets.hide_outcome(outcome)),
            ended => ended,
        }
    }

    /// Holds what cannot be opened here for a while, and gives it back as never begun.
    async fn give_back(&self, request: &Grant, (id, why): (&str, &str), bounds: &Bounds) -> Ended {
        let hold = self.keyless.lacks(&request.action_ref, why, Instant::now());
        bounds.wait();
        let _held = self.keyless.hold();
        tokio::select! {
            biased;
            () = bounds.stop.over.cancelled() => Ended::Killed,
            () = bounds.stop.cancel.cancelled() => {
                Ended::Outcome(Outcome::cancelled("cancelled before it ran"))
            }
            () = tokio::time::sleep(hold) => Ended::GivenBack(Why {
                words: KEYLESS,
                lacks_key: Some(Arc::from(id)),
            }),
        }
    }

    /// Runs what was opened. Its outcome may have secrets in it, but for what its program has written.
    async fn run_opened(&self, given: (&Grant, &Secrets), bounds: Bounds) -> Ended {
        let request = given.0;
        match &request.run {
            Run::Program(argv) => self.programs.run(argv, given, bounds).await,
            Run::Builtin(Builtin::Command) => match parameters::<Command>(request) {
                Ok(command) => self.programs.run(&command.argv, given, bounds).await,
                Err(outcome) => Ended::Outcome(outcome),
            },
            Run::Builtin(Builtin::HttpGet) => match parameters::<Get>(request) {
                Ok(_) => self.fetches.run(given, bounds).await,
                Err(outcome) => Ended::Outcome(outcome),
            },
            Run::Builtin(Builtin::Sleep) => bounds.within(sleep(request)).await,
            Run::Builtin(Builtin::Noop | Builtin::Echo | Builtin::Fail) => {
                unreachable!("it takes no time")
            }
        }
    }
}

/// Reads the parameters of a builtin; what is wrong with them is the run's outcome.
fn parameters<'a, P: Deserialize<'a>>(request: &'a Grant) -> Result<P, Outcome> {
    serde_json::from_str(request.parameters.get()).map_err(|error| {
        let message = error.to_string();
        let problem = message.split(" at line ").next().unwrap_or(&message);
        Outcome::failed(format!(
            "the parameters do not fit {}: {problem}",
            request.action_ref
        ))
    })
}

#[derive(Deserialize)]
struct Command {
    argv: Vec<String>,
}

#[derive(Deserialize)]
struct Fail {
    message: Option<String>,
}

fn echo(request: &Grant) -> Outcome {
    Outcome::succeeded(Some(request.parameters.clone()))
}

fn fail(request: &Grant) -> Outcome {
    match parameters::<Fail>(request) {
        Ok(fail) => Outcome::failed(fail.message.unwrap_or_else(|| "it was to fail".to_owned())),
        Err(outcome) => outcome,
    }
}

#[derive(Deserialize)]
struct Sleep {
    seconds: f64,
}

async fn sleep(request: &Grant) -> Outcome {
    let seconds = match parameters::<Sleep>(request) {
        Ok(sleep) => sleep.seconds,
        Err(outcome) => return outcome,
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) => {
            tokio::time::sleep(duration).await;
            Outcome::succeeded(None)
        }
        Err(error) => Outcome::failed(format!("`seconds` is {seconds}: {error}")),
    }
}
