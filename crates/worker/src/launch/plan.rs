//! What a worker tells a launcher, and what a launcher tells its worker.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::sandbox::Sandbox;

/// An account of this machine, by its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The user.
    pub user: u32,
    /// The only group.
    pub group: u32,
}

/// Where a program is to be, and within which bounds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// By which the launcher starts another one, for which it is the attendant; empty for none.
    pub attended_by: Vec<String>,
    /// The control group of the run; made where it is missing.
    pub cgroup: Option<PathBuf>,
    /// What is written into which files there.
    pub cgroup_limits: Vec<(String, String)>,
    pub open_files: Option<u64>,
    /// In bytes.
    pub file_size: Option<u64>,
    pub account: Option<Account>,
    pub sandbox: Option<Sandbox>,
}

/// How many bytes the number of bytes takes.
const LENGTH: usize = 4;
/// What ends the plan, and each variable: neither can hold one.
const END: u8 = 0;

/// A plan with the variables of the program, as [`read_plan`] reads them behind the number of its bytes.
pub(super) fn written<'a>(
    plan: &Plan,
    environment: impl Iterator<Item = (&'a OsStr, &'a OsStr)>,
) -> io::Result<Vec<u8>> {
    let mut text = vec![0; LENGTH];
    serde_json::to_writer(&mut text, plan)?;
    text.push(END);
    for (name, value) in environment {
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend_from_slice(value.as_bytes());
        text.push(END);
    }
    let length = u32::try_from(text.len() - LENGTH).map_err(io::Error::other)?;
    text[..LENGTH].copy_from_slice(&length.to_be_bytes());
    Ok(text)
}

/// Reads a plan and the variables of the program from a socket, and no more.
///
/// # Errors
/// When it breaks off, or this is none.
pub(super) fn receive(from: &mut impl Read) -> io::Result<(Plan, Vec<(OsString, OsString)>)> {
    let mut length = [0; LENGTH];
    from.read_exact(&mut length)?;
    let mut text = Vec::new();
    let length = u64::from(u32::from_be_bytes(length));
    from.take(length).read_to_end(&mut text)?;
    read_plan(&text)
}

/// Reads a plan and the variables of the program.
///
/// # Errors
/// When this is none.
fn read_plan(text: &[u8]) -> io::Result<(Plan, Vec<(OsString, OsString)>)> {
    let mut parts = text.split(|byte| *byte == END);
    let plan = serde_json::from_slice(parts.next().unwrap_or_default())?;
    let variables = parts.filter_map(|part| {
        let at = part.iter().position(|byte| *byte == b'=')?;
        let owned = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((owned(&part[..at]), owned(&part[at + 1..])))
    });
    Ok((plan, variables.collect()))
}

/// How far a launcher came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Step {
    /// Taking the plan.
    Hear,
    /// Entering the control group, with its limits.
    Cgroup,
    /// Giving the run's folder to the account.
    Room,
    /// Setting limits of the process.
    Limits,
    /// Entering the sandbox.
    Sandbox,
    /// Attending another launcher.
    Attend,
    /// Becoming the program; also taking the account.
    Exec,
}

/// What a launcher says, each on a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Said {
    /// It has not become the program.
    Failed(Failure),
    /// The program runs, as this process; its launcher attends it.
    Began(i32),
    /// The program has ended, with this status as the system gives it.
    Ended(i32),
}

impl Said {
    /// The line that says it.
    pub(super) fn line(&self) -> Vec<u8> {
        // Plain words and numbers; a worker that reads nothing takes the end for the program's.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// Why a launcher has not become the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    pub step: Step,
    /// The number of the error, where it has one.
    pub errno: Option<i32>,
    /// Its words, where it has none.
    pub words: String,
}

impl Failure {
    pub(super) fn of(step: Step, error: &io::Error) -> Self {
        Self {
            step,
            errno: error.raw_os_error(),
            words: error.to_string(),
        }
    }

    /// The error that it was.
    pub(super) fn error(self) -> io::Error {
        match self.errno {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::other(self.words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_was_written_whatever_the_variables_hold() {
        let plan = Plan {
            cgroup: Some("/sys/fs/cgroup/a".into()),
            cgroup_limits: vec![("pids.max".to_owned(), "5".to_owned())],
            account: Some(Account { user: 7, group: 8 }),
            ..Plan::default()
        };
        let variables = [("A", "b=c"), ("EMPTY", ""), ("LINES", "a\nb")];
        let mut variables = variables.map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
        let odd = OsStr::from_bytes(b"\xff\xfe");
        variables[0].1 = odd;
        let text = written(&plan, variables.into_iter()).unwrap();
        let (read, environment) = receive(&mut &*text).unwrap();
        assert_eq!(read, plan);
        let expected = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(environment, expected);
        assert!(receive(&mut &text[..20]).is_err());
    }

    #[test]
    fn an_error_keeps_its_number() {
        let failure = Failure::of(Step::Exec, &io::Error::from_raw_os_error(2));
        let read: Failure = serde_json::from_slice(&serde_json::to_vec(&failure).unwrap()).unwrap();
        assert_eq!(read, failure);
        assert_eq!(read.error().kind(), io::ErrorKind::NotFound);
    }
}
