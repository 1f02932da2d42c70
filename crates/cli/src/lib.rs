//! The commands that talk to a running server over HTTP.
//!
//! Each command makes an [`Output`] and leaves printing to [`run`], so that tests see what a
//! person or a program would. Tables are for people; with `--json` a command writes exactly one
//! JSON document to stdout. Errors go to stderr.

mod action;
mod action_file;
mod audit;
mod batch;
mod batch_plan;
mod batch_report;
mod bounded;
mod cluster;
mod dead_letters;
mod documents;
mod events;
mod executions;
mod explain;
mod holders;
mod http;
mod keys;
mod lines;
mod operation_follow;
mod operation_list;
mod operations;
mod pauses;
mod policies;
mod policy_diff;
mod policy_file;
mod private;
mod probe;
mod queue_limit;
mod queues;
mod render;
mod resubmit;
mod submit;
mod submit_wait;
#[cfg(test)]
mod tests;
mod trust;
mod waits;
mod yaml;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use attune_identity::Key;
use clap::{Args, Subcommand};
use serde::Serialize;

use self::action::ActionArguments;
use self::audit::AuditArguments;
use self::cluster::ClusterArguments;
use self::dead_letters::DeadLettersArguments;
use self::events::EventsArguments;
use self::executions::ExecutionsArguments;
use self::explain::ExplainArguments;
use self::http::{CallError, Http};
use self::operation_list::OperationsArguments;
use self::policies::PolicyArguments;
use self::queues::QueuesArguments;
use self::submit::SubmitArguments;

pub use self::keys::{KeyFailure, Keys, KeysArguments};
pub use self::probe::probe_for;
pub use self::trust::Trust;

/// Shown below the options of every client command.
const EXIT_CODES: &str = "Exit codes:
  0  done; with --wait: the execution succeeded
  1  the execution ended in another way
  2  wrong usage, or the server refused
  3  no server, it cannot be done now, or it is unknown whether it was done";

/// What can be asked of a server.
#[derive(Debug, Clone, Subcommand)]
pub enum ClientCommand {
    /// Apply action files to a server, and look at its actions.
    Action(ActionArguments),
    /// Apply policy documents of all actions, packs, actions and users, and look at them.
    Policy(PolicyArguments),
    /// Ask for executions: one, or a file of them.
    Submit(Box<SubmitArguments>),
    /// Look at executions and cancel them.
    Executions(Box<ExecutionsArguments>),
    /// Say why an execution does not run yet: what it waits for, who holds it, and when it may start.
    Explain(ExplainArguments),
    /// Look at the queues: who waits, how long, and whether they are well.
    Queues(QueuesArguments),
    /// Look at what was asked to be done to many executions at once, and how far it is.
    Operations(OperationsArguments),
    /// Look at the executors, the partitions they own and the workers.
    Cluster(ClusterArguments),
    /// Look at messages that nobody could use, and put them back.
    DeadLetters(DeadLettersArguments),
    /// Look at what was done by hand, and whether the log of it is whole.
    Audit(AuditArguments),
    /// Make keys by which clients say who they are, list them and end them.
    Keys(Box<KeysArguments>),
    /// Listen to what happens to actions whose policies say `events`.
    Events(EventsArguments),
}

/// How to reach the server and how to answer.
#[derive(Debug, Clone, Args)]
pub(crate) struct Connect {
    /// Where the API listens.
    #[arg(
        long,
        global = true,
        env = "ATTUNE_URL",
        // It may hold a password, and help ends up in logs and tickets.
        hide_env_values = true,
        default_value = "http://127.0.0.1:8080",
        value_name = "URL"
    )]
    url: String,
    /// Wait so many seconds for a server that does not listen yet; 0: not at all. One that listens
    /// and does not answer is given up after 90 s, whatever stands here.
    #[arg(long, global = true, default_value_t = 10, value_name = "SECONDS", value_parser = seconds::<u64>)]
    connect_timeout: u64,
    /// A file with the key by which you say who you are, which no other account may read. ATTUNE_KEY may hold the
    /// key itself instead; there is no option for that, since everybody on a machine sees options. Set one of the
    /// two variables, not both; the option goes before either.
    #[arg(long, global = true, env = KEY_FILE_VARIABLE, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    trust: Trust,
    /// Write one JSON document to stdout instead of tables.
    #[arg(long, global = true)]
    json: bool,
}

/// Names the file with the key of whoever asks.
const KEY_FILE_VARIABLE: &str = "ATTUNE_KEY_FILE";
/// Holds the key itself.
const KEY_VARIABLE: &str = "ATTUNE_KEY";

impl Connect {
    /// The key of whoever asks, if they have one.
    fn key(&self) -> Result<Option<Key>, Failure> {
        let text = std::env::var(KEY_VARIABLE).ok().filter(|it| !it.is_empty());
        let named = std::env::var_os(KEY_FILE_VARIABLE);
        key_of(self.key_file.as_deref(), named.as_deref(), text)
    }
}

/// How large a file with a key may be, in bytes.
const MAX_KEY_BYTES: u64 = 16 * 1024;

/// The key in a file, which an option has named or the variable that is `named`, or in a variable. As with the
/// settings, an option goes before variables, and of two variables none goes before the other.
fn key_of(
    file: Option<&Path>,
    named: Option<&OsStr>,
    text: Option<String>,
) -> Result<Option<Key>, Failure> {
    let (text, place) = match (file, text) {
        (Some(file), Some(_)) if named == Some(file.as_os_str()) => {
            return Err(Failure::usage(format!(
                "{KEY_VARIABLE} and {KEY_FILE_VARIABLE} are both set, and each may name another key: unset one of \
                 the two, or say --key-file"
            )));
        }
        (Some(file), _) => (read_key(file)?, format!("--key-file {}", file.display())),
        (None, Some(text)) => (text, KEY_VARIABLE.to_owned()),
        (None, None) => return Ok(None),
    };
    let key = text.trim().parse();
    key.map(Some)
        .map_err(|error| Failure::usage(format!("{place}: {error}")))
}

/// What a file with a key holds.
fn read_key(path: &Path) -> Result<String, Failure> {
    let failed = |problem: String| {
        let words = format!(
            "--key-file {} ({KEY_FILE_VARIABLE}): {problem}",
            path.display()
        );
        Failure::usage(words)
    };
    let text = private::read_private(path, MAX_KEY_BYTES).map_err(failed)?;
    String::from_utf8(text).map_err(|_| failed("it is no text (UTF-8)".to_owned()))
}

/// The most that an option in seconds takes: a year, which no clock overflows by.
const MAX_SECONDS: u32 = 365 * 24 * 3600;

/// Reads an option in seconds.
///
/// # Errors
/// When it is no whole number, or more than a year.
pub fn seconds<T: From<u32>>(text: &str) -> Result<T, String> {
    let seconds: Option<u32> = text.parse().ok();
    let seconds = seconds.filter(|it| *it <= MAX_SECONDS);
    let seconds = seconds.ok_or_else(|| format!("write whole seconds, from 0 to {MAX_SECONDS}"))?;
    Ok(seconds.into())
}

/// Who is told to have done something when nobody is named.
pub const NOBODY: &str = "cli";

/// Who did something: an empty name is none.
pub fn who(given: &str) -> &str {
    if given.is_empty() { NOBODY } else { given }
}

/// What the exit code says; see [`EXIT_CODES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Exit {
    Done = 0,
    NotSucceeded = 1,
    Refused = 2,
    Unknown = 3,
}

/// What a command has to say.
#[derive(Debug)]
struct Output {
    /// For stdout.
    text: String,
    /// For stderr, each on a line of its own.
    problems: Vec<String>,
    exit: Exit,
}

impl Output {
    fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            problems: Vec::new(),
            exit: Exit::Done,
        }
    }

    fn json(value: &impl Serialize) -> Self {
        let text = serde_json::to_string_pretty(value).expect("answers have string keys");
        Self::text(text)
    }

    fn with(mut self, exit: Exit, problems: Vec<String>) -> Self {
        self.exit = exit;
        self.problems = problems;
        self
    }
}

/// Why a command could not do what it was asked to.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    fn usage(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Refused,
            message: message.into(),
        }
    }

    fn unknown(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Unknown,
            message: message.into(),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let exit = match &error {
            CallError::Refused(_) => Exit::Refused,
            CallError::Unavailable(_) | CallError::Unreachable(_) | CallError::Unknown(_) => {
                Exit::Unknown
            }
        };
        Self {
            exit,
            message: error.to_string(),
        }
    }
}

/// Runs a command and prints what it has to say; gives the exit code.
///
/// # Errors
/// When stdout cannot be written.
pub async fn run(command: ClientCommand) -> anyhow::Result<ExitCode> {
    print(execute(command).await)
}

/// Carries out what is asked of keys by something else than a server, and prints what it has to say; gives the
/// exit code.
///
/// # Errors
/// When stdout cannot be written.
pub async fn run_keys(keys: &impl Keys, arguments: &KeysArguments) -> anyhow::Result<ExitCode> {
    print(keys::carry_out(keys, arguments).await)
}

fn print(output: Result<Output, Failure>) -> anyhow::Result<ExitCode> {
    let output = match output {
        Ok(output) => output,
        Err(failure) => Output::text("").with(failure.exit, vec![failure.message]),
    };
    for problem in &output.problems {
        tell(problem);
    }
    if let Err(error) = render::to_stdout(&output.text) {
        // What was done is done. But nobody can read it, and another exit code would say how it ended.
        let first = output.text.lines().next().unwrap_or_default();
        tell(&format!(
            "stdout cannot be written ({error}) of what begins with: {first}"
        ));
        return Ok(ExitCode::from(Exit::Unknown as u8));
    }
    Ok(ExitCode::from(output.exit as u8))
}

/// Says something on stderr, to nobody where that is a full disk or a pipe without a reader: that is no reason
/// to panic.
fn tell(problem: &str) {
    let shown = attune_core::foreign::shown(problem);
    writeln!(std::io::stderr(), "attune: {shown}").ok();
}

async fn execute(command: ClientCommand) -> Result<Output, Failure> {
    let connect = match &command {
        ClientCommand::Action(arguments) => &arguments.connect,
        ClientCommand::Policy(arguments) => &arguments.connect,
        ClientCommand::Submit(arguments) => &arguments.connect,
        ClientCommand::Executions(arguments) => &arguments.connect,
        ClientCommand::Explain(arguments) => &arguments.connect,
        ClientCommand::Queues(arguments) => &arguments.connect,
        ClientCommand::Operations(arguments) => &arguments.connect,
        ClientCommand::Cluster(arguments) => &arguments.connect,
        ClientCommand::DeadLetters(arguments) => &arguments.connect,
        ClientCommand::Events(arguments) => &arguments.connect,
        ClientCommand::Keys(arguments) => &arguments.connect,
        ClientCommand::Audit(arguments) => &arguments.connect,
    };
    let patience = Duration::from_secs(connect.connect_timeout);
    let mut http = Http::new(&connect.url, patience, &connect.trust)?;
    if let Some(key) = connect.key()? {
        http = http.with_key(&key)?;
    }
    match command {
        ClientCommand::Action(arguments) => action::execute(&http, arguments).await,
        ClientCommand::Policy(arguments) => policies::execute(&http, arguments).await,
        ClientCommand::Submit(arguments) => submit::execute(&http, *arguments).await,
        ClientCommand::Executions(arguments) => executions::execute(&http, *arguments).await,
        ClientCommand::Explain(arguments) => explain::execute(&http, arguments).await,
        ClientCommand::Queues(arguments) => queues::execute(&http, arguments).await,
        ClientCommand::Operations(arguments) => operation_list::execute(&http, arguments).await,
        ClientCommand::Cluster(arguments) => cluster::execute(&http, arguments).await,
        ClientCommand::DeadLetters(arguments) => dead_letters::execute(&http, arguments).await,
        ClientCommand::Events(arguments) => events::execute(&http, arguments).await,
        ClientCommand::Audit(arguments) => audit::execute(&http, arguments).await,
        ClientCommand::Keys(arguments) => keys::execute(&http, *arguments).await,
    }
}
