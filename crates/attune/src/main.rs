//! Attune, an execution queue: the roles, the demo, the benchmark and the client commands.

mod api_role;
mod backup;
mod bench;
mod check_history;
mod cli;
mod containment;
mod demo;
mod doctor;
mod exposure;
mod fence;
mod folders;
mod health_command;
mod keys_command;
mod manual;
mod measured;
mod opening;
mod parts;
mod roles;
mod secrets;
mod topology;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use attune_cli::ClientCommand;
use attune_config::{LoadError, Loaded, Loader, LogFormat, Settings, Wiring};
use attune_runtime::telemetry;
use attune_store::StoreError;
use attune_store_postgres::{MIGRATE_TRIES, through_locks};

use crate::cli::{Cli, Command, ConfigCommand, GuardArguments, MigrateCommand, RunHttpArguments};
use crate::opening::{Patience, with_store};
use crate::roles::Role;

/// How long a thread waits for something that blocks. When none is left and the machine has no room
/// for another, whoever needs one panics; a worker would fail all that it runs.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The first argument of a launcher, which a worker starts and nobody else.
const LAUNCH: &str = "launch";
/// What runs this very program again, also when its file was replaced by that of another release meanwhile.
#[cfg(not(test))]
fn own_program() -> OsString {
    "/proc/self/exe".into()
}

/// The program beside the folder of the test binaries, where one is named in `ATTUNE_BIN` that: a test binary
/// is no launcher and no guard.
#[cfg(test)]
fn own_program() -> OsString {
    let beside = || {
        Some(
            std::env::current_exe()
                .ok()?
                .parent()?
                .parent()?
                .join("attune"),
        )
    };
    let named = std::env::var_os("ATTUNE_BIN").map(Into::into);
    named.or_else(beside).unwrap().into_os_string()
}

/// The exit code of a client command that was typed or set up wrongly.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    // Before anything else, as it stands before each program that a worker runs.
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|first| first == LAUNCH).is_some() {
        return launch(arguments);
    }
    let cli = Cli::of_process();
    if runs_programs(&cli.command)
        && let Err(error) = attune_worker::close_to_others()
    {
        eprintln!("attune: programs can look into this process: {error}");
    }
    if let Command::Guard(guarding) = &cli.command {
        return guard(&cli, guarding);
    }
    if let Command::RunHttp(fetch) = &cli.command {
        return run_http(fetch);
    }
    // Two providers in one program would make every TLS connection panic: name ours first.
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        eprintln!("attune: another TLS provider was installed first; going on with it");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_keep_alive(FOR_EVER)
        .build()
    {
        Ok(runtime) => {
            // From here on there is a thread for what blocks, also where no more can be made.
            drop(runtime.spawn_blocking(|| ()));
            runtime
        }
        Err(error) => {
            eprintln!("attune: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli)) {
        Ok(code) => code,
        Err(error) => {
            tell(&error);
            ExitCode::FAILURE
        }
    }
}

/// Prints to stdout, as far as somebody reads there.
fn print_all(text: &str) -> anyhow::Result<ExitCode> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Prints a line to stdout, to nobody where that is a full disk or a pipe without a reader: what it tells
/// of is done.
fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").ok();
}

/// Prints what went wrong, with its causes, without passwords, and without what would steer a terminal:
/// it may quote what somebody else wrote.
fn tell(error: &anyhow::Error) {
    let text = attune_config::redact_urls(&format!("{error:#}"));
    // To nobody, where stderr is a full disk or a pipe without a reader; that is no reason to panic.
    writeln!(
        std::io::stderr(),
        "attune: {}",
        attune_core::foreign::shown(&text)
    )
    .ok();
}

/// Whether a process holds passwords while it runs what others have written, or knows what such a one runs.
fn runs_programs(command: &Command) -> bool {
    matches!(
        command,
        Command::Worker | Command::Standalone | Command::Demo(_) | Command::Guard(_)
    )
}

/// Becomes the program that the arguments name, for the worker that started this process. Without
/// settings, a log or a runtime: it adds to the time that each program takes to start.
fn launch(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    if let Err(error) = attune_worker::launch(arguments) {
        eprintln!("attune: {LAUNCH}: {error}");
    }
    ExitCode::FAILURE
}

/// Without a runtime of threads: it only waits, and there is one for each worker.
fn guard(cli: &Cli, guarding: &GuardArguments) -> ExitCode {
    let guarded = load(cli, false).and_then(|loaded| {
        let log = &loaded.settings.log;
        let service = telemetry::Service {
            name: "guard".to_owned(),
            instance: loaded.settings.worker.name_or_host(),
        };
        let _log = telemetry::init(&log.level, log.format, &service)?;
        Ok(attune_worker::guard::run(guarding.kills_worker)?)
    });
    match guarded {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attune: guard: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Without settings and without a runtime of threads: there is one for each fetch.
fn run_http(fetch: &RunHttpArguments) -> ExitCode {
    match attune_worker::run_http(&fetch.options()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attune: run-http: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let embedded = match &cli.command {
        Command::Standalone | Command::Demo(_) | Command::Backup { .. } => true,
        Command::Doctor(arguments) => arguments.is_standalone(),
        _ => false,
    };
    // Without settings, which may be of no use here.
    match &cli.command {
        // Nor a log: it says itself what it finds.
        Command::Doctor(arguments) => {
            return doctor::run(read_settings(&cli, embedded), cli.config.clone(), arguments).await;
        }
        Command::DemoProgram(program) => return demo::program::run(program),
        Command::Completions { shell } => return print_all(&manual::completions(*shell)),
        Command::Man { folder } => return manual::write_pages(folder),
        Command::Secrets(command) => return secrets::run(command),
        _ => {}
    }
    let loaded = match load(&cli, embedded) {
        Ok(loaded) => loaded,
        // Their exit code 1 says something about an execution or a promise.
        Err(error) if matches!(cli.command, Command::Client(_) | Command::CheckHistory(_)) => {
            tell(&error);
            return Ok(ExitCode::from(WRONG_USAGE));
        }
        Err(error) => return Err(error),
    };
    match cli.command {
        Command::CheckHistory(arguments) => {
            let dir = loaded.settings.history.dir.as_deref();
            return Ok(check_history::run(&arguments, dir));
        }
        Command::Client(ClientCommand::Keys(arguments)) if arguments.asks_database() => {
            return keys_command::run(&loaded.settings, &arguments).await;
        }
        Command::Client(command) => return attune_cli::run(command).await,
        Command::Health(arguments) => {
            return Ok(health_command::run(&loaded.settings, &arguments).await);
        }
        _ => {}
    }
    let settings = &loaded.settings;
    let log = start_log(&cli.command, &loaded)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    match cli.command {
        Command::Executor => serve_one(&loaded, Role::Executor, &log).await,
        Command::CompletionListener => serve_one(&loaded, Role::CompletionListener, &log).await,
        Command::Stats => serve_one(&loaded, Role::Stats, &log).await,
        Command::Api => serve_one(&loaded, Role::Api, &log).await,
        Command::Worker => serve_one(&loaded, Role::Worker, &log).await,
        Command::Standalone => roles::serve(settings, &Role::ALL, &log).await,
        Command::Migrate(arguments) => migrate(settings, &arguments).await,
        Command::Backup { ref file } => backup::run(settings, file).await,
        Command::RestoreFence(arguments) => {
            let program = fence::program(cli.config.as_deref(), &cli.set);
            fence::restore_fence(settings, &program, &arguments).await
        }
        Command::Topology(ref command) => topology::run(settings, command).await,
        Command::Demo(ref arguments) => demo::run(settings, arguments).await,
        Command::Bench(ref arguments) => bench::run(settings, arguments).await,
        Command::Config(ConfigCommand::Print { json }) => {
            let format = if json {
                attune_config::PrintFormat::Json
            } else {
                attune_config::PrintFormat::Yaml
            };
            print_all(&settings.print(format))
        }
        Command::Config(ConfigCommand::Default) => print_all(attune_config::DEFAULT_FILE),
        Command::Guard(_)
        | Command::RunHttp(_)
        | Command::DemoProgram(_)
        | Command::CheckHistory(_)
        | Command::Doctor(_)
        | Command::Health(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::Secrets(_)
        | Command::Client(_) => {
            unreachable!("handled above")
        }
    }
}

/// Starts the log. A command that ends by itself speaks to the person who typed it, unless the
/// settings ask for something else.
fn start_log(command: &Command, loaded: &Loaded) -> anyhow::Result<telemetry::Log> {
    let log = &loaded.settings.log;
    let ends = matches!(
        command,
        Command::Demo(_)
            | Command::Bench(_)
            | Command::Migrate(_)
            | Command::Backup { .. }
            | Command::RestoreFence(_)
            | Command::Topology(_)
            | Command::Config(_)
    );
    let level = if ends && !was_set(loaded, "log.level") {
        "warn"
    } else {
        &log.level
    };
    let log = if ends && log.format == LogFormat::Auto {
        telemetry::init_plain(level)?
    } else {
        let roles = roles_of(command);
        let service = telemetry::Service {
            name: roles::name_of(roles).to_owned(),
            instance: roles::instance(&loaded.settings, roles),
        };
        telemetry::init(level, log.format, &service)?
    };
    Ok(log)
}

/// The roles that a command serves, all where it has them in its own process or serves none.
fn roles_of(command: &Command) -> &'static [Role] {
    match command {
        Command::Executor => &[Role::Executor],
        Command::CompletionListener => &[Role::CompletionListener],
        Command::Stats => &[Role::Stats],
        Command::Worker => &[Role::Worker],
        Command::Api => &[Role::Api],
        _ => &Role::ALL,
    }
}

/// Serves one role beside processes that serve the others.
async fn serve_one(loaded: &Loaded, role: Role, log: &telemetry::Log) -> anyhow::Result<ExitCode> {
    let name = role.name();
    ensure!(
        loaded.settings.wiring != Wiring::Embedded,
        "with `wiring: embedded` ({}) nobody could reach `attune {name}`: that wiring lives inside \
         one process; run `attune standalone`, which is all roles in one, or set \
         `wiring: postgres-rabbitmq`",
        loaded.source("wiring")
    );
    roles::serve(&loaded.settings, &[role], log).await
}

async fn migrate(settings: &Settings, command: &MigrateCommand) -> anyhow::Result<ExitCode> {
    let roles = match &command.grants {
        Some(prefix) => Some(parts::roles(settings, prefix, &command.pools)?),
        None => None,
    };
    let patience = Patience::of(&command.patience);
    with_store(settings, "migrate", patience, async |store| {
        let before = match store.check().await {
            // Who cannot look at the schema, because somebody has locked it, would wait for as long as
            // that, and what starts after this with it.
            Err(error) if !matches!(error, StoreError::Schema(_)) => {
                return Err(error).context("the schema cannot be looked at");
            }
            before => before,
        };
        store
            .migrate()
            .await
            .context("the schema could not be brought up to date")?;
        let days = settings.audit.retention_days;
        through_locks(MIGRATE_TRIES, || store.keep_audit_for(days))
            .await
            .context("audit.retention_days could not be written down")?;
        // Here and not in a role, so that it is done once and before anything starts. Where the core
        // actions belong follows from the number of partitions, which is fixed first.
        let partitions = settings.cluster.partitions;
        through_locks(MIGRATE_TRIES, || store.ensure_partitions(partitions))
            .await
            .context("cluster.partitions")?;
        through_locks(MIGRATE_TRIES, || {
            roles::apply_core_pack(store.as_ref(), settings)
        })
        .await
        .context("the core actions could not be applied")?;
        store.close().await;
        let done = match before {
            Ok(()) => ": there was nothing to apply",
            Err(_) => ": migrations were applied",
        };
        say(&format!("the schema is up to date{done}"));
        if let Some(roles) = &roles {
            parts::grant(settings, roles).await?;
            say("the roles of the database have what they need");
        }
        Ok(())
    })
    .await
}

fn load(cli: &Cli, embedded: bool) -> anyhow::Result<Loaded> {
    Ok(read_settings(cli, embedded)?)
}

fn read_settings(cli: &Cli, embedded: bool) -> Result<Loaded, LoadError> {
    let mut loader = Loader::new().environment(std::env::vars_os());
    if embedded {
        loader = loader.command_defaults([("wiring", "embedded")]);
    }
    let flags = cli
        .set
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    // Neither needs a secret, and a process whose secrets have changed since it started is well.
    let leaves_files = match &cli.command {
        Command::Client(ClientCommand::Keys(arguments)) => !arguments.asks_database(),
        command => matches!(command, Command::Client(_) | Command::Health(_)),
    };
    let loader = loader.leave_files(leaves_files);
    loader.file(cli.config.clone()).flags(flags).load()
}

fn was_set(loaded: &Loaded, key: &str) -> bool {
    !matches!(loaded.source(key), attune_config::Source::Default)
}
