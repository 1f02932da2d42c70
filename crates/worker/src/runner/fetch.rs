//! `core.http.get` as a program like every other: what a worker makes of it, and the program itself.
//!
//! A fetch runs in a process of its own, so that its time, a cancel and the guard end it as they
//! end everything, and what a server sends is parsed where neither the worker's memory nor its
//! passwords are.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};

use attune_core::{Outcome, Status};
use attune_messages::v2::Grant;
use attune_secrets::Secrets;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::http::{Get, HttpGet};
use super::program::Programs;
use super::{Bounds, Ended};
use crate::options::{HttpOptions, WorkerOptions};

/// Where the certificates of the system are, and how names are resolved.
const ENV: [&str; 4] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "RES_OPTIONS",
    "LOCALDOMAIN",
];
/// How much longer than a byte of a body its place in an answer can be: `\u0001`.
const ESCAPED: usize = 6;
/// What an answer holds beside the body, at most: a few headers.
const HEADERS_BYTES: usize = 1 << 20;

/// What the program answers, as JSON on its stdout.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    result: Option<Box<RawValue>>,
    /// Why it failed; absent when it did not.
    error: Option<String>,
}

/// Starts the program.
pub(super) struct Fetches {
    programs: Programs,
    command: Vec<OsString>,
}

impl Fetches {
    pub(super) fn new(options: &WorkerOptions, programs: &Programs) -> Self {
        let max_bytes = ESCAPED * options.http.max_body_bytes + HEADERS_BYTES;
        Self {
            programs: programs.for_own(&ENV, max_bytes),
            command: options.fetch.clone(),
        }
    }

    pub(super) async fn run(&self, given: (&Grant, &Secrets), bounds: Bounds) -> Ended {
        if self.command.is_empty() {
            let words = "this worker was started without a program for core.http.get";
            return Ended::Outcome(Outcome::failed(words));
        }
        match self.programs.run(&self.command, given, bounds).await {
            Ended::Outcome(outcome) => Ended::Outcome(told(outcome)),
            ended => ended,
        }
    }
}

/// What is reported of a fetch whose program ended like this.
fn told(outcome: Outcome) -> Outcome {
    if !matches!(outcome.status, Status::Succeeded | Status::Failed) {
        // It was ended, and what it has written of an answer says nothing.
        return Outcome::of(outcome.status, outcome.error);
    }
    let answer = outcome.stdout.as_deref().map(serde_json::from_str);
    match answer {
        Some(Ok(Answer {
            result,
            error: None,
        })) => Outcome::succeeded(result),
        Some(Ok(Answer {
            result,
            error: Some(error),
        })) => Outcome {
            result,
            ..Outcome::failed(error)
        },
        Some(Err(_)) | None => {
            let why = outcome.error.unwrap_or_else(|| "it said nothing".into());
            Outcome {
                exit_code: outcome.exit_code,
                stderr: outcome.stderr,
                ..Outcome::failed(format!(
                    "the program of core.http.get gave no answer: {why}"
                ))
            }
        }
    }
}

/// The program itself: fetches what stdin asks for, in the form of `core.http.get`'s parameters,
/// and writes what came of it to stdout, for the worker that started it
/// ([`WorkerOptions::fetch`]).
///
/// # Errors
/// When stdin cannot be read, stdout cannot be written, or no runtime can be made.
pub fn run_http(options: &HttpOptions) -> io::Result<()> {
    let mut asked = String::new();
    io::stdin().read_to_string(&mut asked)?;
    let get: Get = serde_json::from_str(&asked)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(HttpGet::new(options).run(get));
    // A name that is still being resolved would hold it up.
    runtime.shutdown_background();
    let answer = Answer {
        result: outcome.result,
        error: outcome.error,
    };
    let mut stdout = io::stdout().lock();
    serde_json::to_writer(&mut stdout, &answer)?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(status: Status, stdout: Option<&str>) -> Outcome {
        Outcome {
            exit_code: Some(0),
            stdout: stdout.map(str::to_owned),
            stderr: Some("noise".to_owned()),
            ..Outcome::of(status, None)
        }
    }

    #[test]
    fn an_answer_is_the_outcome_and_nothing_else_is_told() {
        let good = told(ended(
            Status::Succeeded,
            Some(r#"{"result":{"status":200},"error":null}"#),
        ));
        assert_eq!(good.status, Status::Succeeded);
        assert_eq!(good.result.unwrap().get(), r#"{"status":200}"#);
        assert_eq!(
            (good.exit_code, good.stdout, good.stderr),
            (None, None, None)
        );
        let bad = told(ended(
            Status::Succeeded,
            Some(r#"{"result":{"status":503},"error":"the server answered 503"}"#),
        ));
        assert_eq!(bad.status, Status::Failed);
        assert_eq!(bad.error.as_deref(), Some("the server answered 503"));
        assert_eq!(bad.result.unwrap().get(), r#"{"status":503}"#);
    }

    #[test]
    fn a_program_that_breaks_off_fails_its_execution_and_says_why() {
        for stdout in [None, Some(r#"{"result":{"sta"#)] {
            let mut broken = ended(Status::Failed, stdout);
            broken.error = Some("the program was ended by signal 9 (SIGKILL)".to_owned());
            let broken = told(broken);
            assert_eq!(broken.status, Status::Failed);
            let error = broken.error.unwrap();
            assert!(
                error.contains("gave no answer") && error.contains("SIGKILL"),
                "{error}"
            );
            assert_eq!(broken.stderr.as_deref(), Some("noise"));
            assert!(broken.result.is_none());
        }
        let late = told(ended(Status::TimedOut, Some("{")));
        assert_eq!((late.status, late.stdout), (Status::TimedOut, None));
    }
}
