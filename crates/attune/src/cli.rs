//! The command line.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use attune_core::plant::planted;
use attune_worker::HttpOptions;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::bench::BenchArguments;
use crate::check_history::CheckHistoryArguments;
use crate::demo::DemoArguments;
use crate::demo::program::DemoProgram;
use crate::doctor::DoctorArguments;
use crate::secrets::SecretsCommand;
use crate::topology::TopologyCommand;
use attune_cli::ClientCommand;

/// How the program was built, and the bug that is planted in it.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let built = env!("VERSION_BUILT");
    planted().map_or(built.to_owned(), |bug| {
        format!("{built} with the planted bug {}", bug.name())
    })
});

/// Names the file with settings.
const CONFIG_VARIABLE: &str = "ATTUNE_CONFIG";

/// Attune decides when each execution of an action may start: in order, within its limits,
/// losing nothing.
#[derive(Debug, Parser)]
#[command(name = "attune", version = VERSION.as_str(), propagate_version = true)]
pub(crate) struct Cli {
    /// A YAML file with settings; `attune config default` prints one with every key.
    #[arg(long, global = true, value_name = "FILE", env = CONFIG_VARIABLE)]
    pub(crate) config: Option<PathBuf>,
    /// One setting, over file and variables: `--set worker.slots=8`.
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) set: Vec<(String, String)>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads the command line of this process, which ends here when it is wrong.
    pub(crate) fn of_process() -> Self {
        let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|it| it.is_empty());
        let mut command = without(Self::command(), &is_empty);
        let matches = command.get_matches_mut();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }
}

/// A command that reads none of the variables that are empty. Such a one is none: compose files and shells pass on
/// unset variables like that.
fn without(command: clap::Command, is_empty: &dyn Fn(&OsStr) -> bool) -> clap::Command {
    command
        .mut_args(|arg| match arg.get_env().is_some_and(is_empty) {
            true => arg.env(None::<&'static str>),
            false => arg,
        })
        .mut_subcommands(|command| without(command, is_empty))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the main job in this process: real programs under limits, then a table. Ends by itself.
    Demo(DemoArguments),
    /// Serve everything in one process on SQLite.
    Standalone,
    /// Decide which execution may start (PostgreSQL and RabbitMQ).
    Executor,
    /// Pass completions to the owners of their partitions.
    CompletionListener,
    /// Keep the snapshots of the queues.
    Stats,
    /// Serve HTTP.
    Api,
    /// Run executions.
    Worker,
    /// Bring the database's schema up to date.
    Migrate(MigrateCommand),
    /// Copy the database of `attune standalone` into a new file, also while it runs.
    Backup {
        /// The file to be made, which only its owner may read; its folder must exist.
        file: PathBuf,
    },
    /// Fence off what was before the database was set back: once after a restore, before anything starts.
    RestoreFence(RestoreFenceArguments),
    /// Declare what is on the broker, and say who may do what there.
    #[command(subcommand)]
    Topology(TopologyCommand),
    /// Measure throughput and delays with limits on, and check order and limits.
    Bench(BenchArguments),
    /// Judge from what all processes recorded whether the promises were kept.
    CheckHistory(CheckHistoryArguments),
    /// Look at the settings.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Keys by which secrets in parameters are encrypted.
    #[command(subcommand)]
    Secrets(SecretsCommand),
    /// Look at everything that these settings lead to, and say what is wrong and what to do: exit code 0 when all is
    /// well, 1 with warnings, 2 with problems. Changes nothing.
    Doctor(DoctorArguments),
    /// Ask a process of this machine whether it is ready: exit code 0 when it is, else 1.
    Health(HealthArguments),
    /// Print what completes this command line in a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder.
    #[command(hide = true)]
    Man {
        /// The folder; it must exist.
        folder: PathBuf,
    },
    #[command(flatten)]
    Client(ClientCommand),
    /// Kill what a worker runs when the worker cannot; started by each worker.
    #[command(hide = true)]
    Guard(GuardArguments),
    /// Fetch one URL for `core.http.get`; started by a worker.
    #[command(name = "run-http", hide = true)]
    RunHttp(RunHttpArguments),
    /// The program that the demo runs.
    #[command(name = "demo-program", hide = true)]
    DemoProgram(DemoProgram),
}

#[derive(Debug, Args)]
pub(crate) struct MigrateArguments {
    /// Give up when PostgreSQL does not answer within so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = attune_cli::seconds::<u64>)]
    pub(crate) give_up_after: u64,
}

#[derive(Debug, Args)]
pub(crate) struct MigrateCommand {
    #[command(flatten)]
    pub(crate) patience: MigrateArguments,
    /// Make roles of the database for the parts of the system too, and grant each what it needs and no more: groups
    /// whose names begin with PREFIX. Whoever asks owns the tables and may make roles.
    #[arg(long, value_name = "PREFIX", num_args = 0..=1, default_missing_value = "attune_")]
    pub(crate) grants: Option<String>,
    /// With --grants: a pool whose workers log in as members of PREFIXpool_POOL; may be given several times. Not
    /// given: worker.pool.
    #[arg(long = "pool", value_name = "POOL", requires = "grants")]
    pub(crate) pools: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreFenceArguments {
    #[command(flatten)]
    pub(crate) patience: MigrateArguments,
    /// Fence off everybody also when somebody is still there: what they run is killed.
    #[arg(long)]
    pub(crate) force: bool,
    /// How often this very backup was restored before: ids and attempts then go on further away, where none of those
    /// lives has given them out.
    #[arg(long, value_name = "TIMES", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    pub(crate) again: u16,
    /// Who does it, for the audit log.
    #[arg(long, env = "USER", value_name = "NAME", default_value = attune_cli::NOBODY)]
    pub(crate) who: String,
}

#[derive(Debug, Args)]
pub(crate) struct HealthArguments {
    /// Only whether it answers at all.
    #[arg(long)]
    pub(crate) live: bool,
    /// Where its probes are. Not given: at metrics.listen if that is set, else at ops.listen, else at
    /// http://127.0.0.1:8081.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) trust: attune_cli::Trust,
    /// Ask until the answer is yes, for so many seconds at most.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = attune_cli::seconds::<u64>)]
    pub(crate) wait: u64,
}

#[derive(Debug, Args)]
pub(crate) struct GuardArguments {
    /// Kill the worker itself when it stands still beyond its lease.
    #[arg(long)]
    pub(crate) kills_worker: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunHttpArguments {
    /// For the whole request, redirects included.
    #[arg(long, value_name = "MILLISECONDS")]
    timeout_ms: u64,
    /// What is read of the response, at most.
    #[arg(long, value_name = "BYTES")]
    max_body_bytes: usize,
    /// What the result may take as JSON, at most.
    #[arg(long, value_name = "BYTES")]
    max_result_bytes: usize,
    /// Reach loopback, private, link-local and metadata addresses as well.
    #[arg(long)]
    allow_private_addresses: bool,
}

impl RunHttpArguments {
    pub(crate) fn options(&self) -> HttpOptions {
        HttpOptions {
            allow_private_addresses: self.allow_private_addresses,
            timeout: Duration::from_millis(self.timeout_ms),
            max_body_bytes: self.max_body_bytes,
            max_result_bytes: self.max_result_bytes,
        }
    }
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print what is in force, secrets hidden.
    Print {
        /// As one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Print the commented default file.
    Default,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(key, value)| (key.trim().to_owned(), value.to_owned()))
        .filter(|(key, _)| !key.is_empty())
        .ok_or_else(|| format!("`{text}` is not KEY=VALUE, as in worker.slots=8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_is_none() {
        let of = |path: &[&str], arg: &str, empty: &str| {
            let command = without(Cli::command(), &|name| name == empty);
            let command = path.iter().fold(&command, |command, name| {
                command.find_subcommand(name).unwrap()
            });
            let arg = command.get_arguments().find(|it| it.get_id() == arg);
            arg.unwrap().get_env().is_some()
        };
        for (path, arg, variable) in [
            (&[][..], "config", CONFIG_VARIABLE),
            (&["queues"], "url", "ATTUNE_URL"),
            (&["action"], "url", "ATTUNE_URL"),
            (&["action"], "ca_file", "ATTUNE_CA_FILE"),
            (&["health"], "client_cert_file", "ATTUNE_CLIENT_CERT_FILE"),
            (&["action", "apply"], "who", "USER"),
        ] {
            assert!(of(path, arg, ""), "{variable} is read");
            assert!(!of(path, arg, variable), "{variable} is none");
        }
        let command = without(Cli::command(), &|_| true);
        let given = command.try_get_matches_from(["attune", "standalone"]);
        let cli = Cli::from_arg_matches(&given.unwrap()).unwrap();
        assert_eq!(cli.config, None);
    }
}
