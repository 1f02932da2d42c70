//! How an execution ended.

use serde_json::value::RawValue;

use crate::status::Status;

/// How an execution ended: its last status, and what came of it.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// A terminal status.
    pub status: Status,
    /// What it returned.
    pub result: Option<Box<RawValue>>,
    /// Why it did not succeed, for people.
    pub error: Option<String>,
    /// The exit code of its program.
    pub exit_code: Option<i32>,
    /// What its program wrote, cut at the worker's bound.
    pub stdout: Option<String>,
    /// What its program wrote to stderr, cut at the worker's bound.
    pub stderr: Option<String>,
}

impl Outcome {
    /// An end without output.
    pub fn of(status: Status, error: Option<String>) -> Self {
        Self {
            status,
            result: None,
            error,
            exit_code: None,
            stdout: None,
            stderr: None,
        }
    }

    /// A run that did what it should.
    pub fn succeeded(result: Option<Box<RawValue>>) -> Self {
        Self {
            result,
            ..Self::of(Status::Succeeded, None)
        }
    }

    /// A run that did not.
    pub fn failed(error: impl Into<String>) -> Self {
        Self::of(Status::Failed, Some(error.into()))
    }

    /// A run that was ended.
    pub fn cancelled(error: impl Into<String>) -> Self {
        Self::of(Status::Cancelled, Some(error.into()))
    }
}
