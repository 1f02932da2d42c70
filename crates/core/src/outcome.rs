//! How an execution ended.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::reject::RejectCode;
use crate::status::Status;

/// Why an execution has ended that was not run to its own end, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndCode {
    /// The queue was full, and another one took its place.
    Dropped,
    /// A later one of its group took its place.
    Replaced,
    /// It waited longer than its queue allows.
    Expired,
    /// Its program took more memory than it may.
    OutOfMemory,
    /// Its program had more processes than it may.
    TooManyProcesses,
    /// Its worker lacks a secret that it needs, or the key that opens one.
    SecretUnavailable,
    /// It was refused.
    Rejected(RejectCode),
}

impl EndCode {
    /// Its name on the wire and in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dropped => "DROPPED",
            Self::Replaced => "REPLACED",
            Self::Expired => "EXPIRED",
            Self::OutOfMemory => "OUT_OF_MEMORY",
            Self::TooManyProcesses => "TOO_MANY_PROCESSES",
            Self::SecretUnavailable => "SECRET_UNAVAILABLE",
            Self::Rejected(code) => code.as_str(),
        }
    }

    /// The one of this name among those that the worker of a run says.
    #[must_use]
    pub fn of_run(name: &str) -> Option<Self> {
        let said = [
            Self::OutOfMemory,
            Self::TooManyProcesses,
            Self::SecretUnavailable,
        ];
        said.into_iter().find(|code| code.as_str() == name)
    }
}

impl Serialize for EndCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Those that a worker says are read; the others are nobody's to say.
impl<'de> Deserialize<'de> for EndCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::of_run(&name).ok_or_else(|| {
            let shown: String = name.chars().take(64).collect();
            D::Error::custom(format!(
                "{shown:?} is no code of a run; there are OUT_OF_MEMORY, TOO_MANY_PROCESSES and SECRET_UNAVAILABLE"
            ))
        })
    }
}

/// How an execution ended: its last status, and what came of it.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// A terminal status.
    pub status: Status,
    /// Why it was not run to its end, where that has a name.
    pub code: Option<EndCode>,
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
            code: None,
            result: None,
            error,
            exit_code: None,
            stdout: None,
            stderr: None,
        }
    }

    /// An end without output that has a name.
    pub fn coded(status: Status, code: EndCode, error: impl Into<String>) -> Self {
        Self {
            code: Some(code),
            ..Self::of(status, Some(error.into()))
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
