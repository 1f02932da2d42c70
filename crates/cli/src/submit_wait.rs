//! Waits for the end of an execution that was submitted.

use std::time::{Duration, Instant};

use attune_api_types::Execution;
use attune_core::ExecutionId;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::http::{CallError, Http};
use super::{Failure, render, waits};

/// The pause before the second look at an execution; each further one is half as long again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long the look at the deadline of `--timeout` may take.
const LAST_LOOK: Duration = Duration::from_millis(500);
/// Whoever waits is told after so long what the execution waits for.
const TOLD_AFTER: Duration = Duration::from_secs(5);
/// How long finding that out may take.
const REMARKS: Duration = Duration::from_secs(1);
/// A wait without `--timeout` ends when the server has not answered for so long.
const SERVER_LOST_AFTER: Duration = Duration::from_secs(60);

/// Looks at the execution until it has ended, the last time when `timeout` is over.
pub(super) async fn wait(
    http: &Http,
    id: ExecutionId,
    timeout: Option<Duration>,
) -> Result<Execution, Failure> {
    let started = Instant::now();
    let spinner = spinner();
    let deadline = timeout.map(|timeout| started + timeout);
    let (mut pause, mut lost_since, mut told) = (FIRST_PAUSE, None, None);
    loop {
        let unseen = match look(http, id, deadline).await {
            Ok(record) if record.status.is_terminal() => {
                return Ok(record);
            }
            Ok(record) => {
                lost_since = None;
                spinner.set_message(format!("execution {id} is {}", record.status));
                if started.elapsed() >= TOLD_AFTER && told != Some(record.status) {
                    told = Some(record.status);
                    let remarks = tokio::time::timeout(REMARKS, waits::remarks(http, &record));
                    if let Some(why) = remarks.await.ok().and_then(|remarks| remarks.waits) {
                        spinner.suspend(|| {
                            super::tell(&format!(
                                "execution {id} waits: {}",
                                render::one_line(&why)
                            ));
                        });
                    }
                }
                None
            }
            Err(error @ CallError::Refused(_)) => return Err(error.into()),
            Err(error) => {
                let since = *lost_since.get_or_insert_with(Instant::now);
                if timeout.is_none() && since.elapsed() >= SERVER_LOST_AFTER {
                    return Err(Failure::unknown(format!(
                        "execution {id} was accepted; how it ended is unknown: {error}"
                    )));
                }
                spinner.set_message(format!("execution {id}: {error}"));
                Some(error)
            }
        };
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let after = timeout.unwrap_or_default().as_secs();
            return Err(Failure::unknown(match unseen {
                None => format!("execution {id} has not ended after {after} s; it goes on"),
                Some(error) => format!(
                    "execution {id} was accepted; whether it has ended after {after} s is unknown: {error}"
                ),
            }));
        }
        let wake = Instant::now() + pause;
        let wake = deadline.map_or(wake, |deadline| wake.min(deadline));
        tokio::time::sleep_until(wake.into()).await;
        pause = LONGEST_PAUSE.min(pause * 3 / 2);
    }
}

/// One look; the last one, at the deadline, may take a little longer.
async fn look(
    http: &Http,
    id: ExecutionId,
    deadline: Option<Instant>,
) -> Result<Execution, CallError> {
    let path = format!("/executions/{id}");
    let answer = http.get(&path, &[]);
    let Some(deadline) = deadline else {
        return answer.await;
    };
    tokio::time::timeout_at((deadline + LAST_LOOK).into(), answer)
        .await
        .unwrap_or_else(|_| Err(CallError::Unknown("no answer in time".to_owned())))
}

/// A sign of life on a terminal; nothing elsewhere.
fn spinner() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}  {elapsed}")
        .expect("the template is fixed and right");
    let spinner = ProgressBar::new_spinner()
        .with_style(style)
        .with_finish(ProgressFinish::AndClear);
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}
