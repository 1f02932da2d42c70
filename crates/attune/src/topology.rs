//! `attune topology`: what is on the broker, and who may do what there.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use attune_bus::Topic;
use attune_bus_rabbitmq::{Account, Permission};
use attune_config::{BrokerTopology, Settings, Wiring};
use attune_runtime::Shutdown;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use crate::parts::{Parts, rabbit_options};

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum TopologyCommand {
    /// Declare all exchanges, queues and bindings that stay, for processes that may not (`broker.topology: passive`).
    Apply {
        /// Give up after so many seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = attune_cli::seconds::<u64>)]
        give_up_after: u64,
    },
    /// Print a user for each part of the system, with what it needs on the broker and no more.
    Permissions(PermissionArguments),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PermissionArguments {
    /// `rabbitmqctl`: its command lines. `json`: as `rabbitmqctl import_definitions` and the HTTP interface take it.
    #[arg(long, value_enum, default_value_t = Format::Rabbitmqctl)]
    format: Format,
    /// A pool whose workers have a user; may be given several times. Not given: worker.pool.
    #[arg(long = "pool", value_name = "POOL", value_parser = name)]
    pools: Vec<String>,
    /// A client that publishes rule firings; may be given several times.
    #[arg(long = "client", value_name = "NAME", value_parser = name)]
    clients: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Rabbitmqctl,
    Json,
}

/// A name that stands for itself in a regular expression, and that no shell reads otherwise.
fn name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    match (1..=64).contains(&text.len()) && text.bytes().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("1 to 64 lower-case letters, digits, `_` and `-` are allowed".to_owned()),
    }
}

/// Runs the command.
pub(crate) async fn run(
    settings: &Settings,
    command: &TopologyCommand,
) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        settings.wiring == Wiring::PostgresRabbitmq,
        "`wiring: embedded` has no broker, so there is nothing to declare and nobody to permit anything"
    );
    match command {
        TopologyCommand::Apply { give_up_after } => {
            let patience = Duration::from_secs(*give_up_after);
            apply(settings, patience).await
        }
        TopologyCommand::Permissions(arguments) => crate::print_all(&printed(settings, arguments)?),
    }
}

async fn apply(settings: &Settings, patience: Duration) -> anyhow::Result<ExitCode> {
    let mut settings = settings.clone();
    settings.broker.topology = BrokerTopology::Apply;
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals()?;
    let waiting = {
        let shutdown = shutdown.clone();
        async move {
            tokio::time::sleep(patience).await;
            // Between two tries, so that none is cut off.
            shutdown.cancel();
        }
    };
    let applying = async {
        let parts = Parts::open(&settings, "topology", &shutdown).await?;
        let topics = Topic::all_kept(settings.cluster.partitions);
        for topic in &topics {
            let declared = parts.bus.declare(topic).await;
            declared.with_context(|| format!("{topic} could not be declared"))?;
        }
        parts.close().await;
        Ok::<_, anyhow::Error>(topics.len())
    };
    let mut applying = std::pin::pin!(applying);
    let declared = tokio::select! {
        declared = &mut applying => declared,
        () = waiting => applying.await.with_context(|| {
            format!("gave up after {} s (--give-up-after)", patience.as_secs())
        }),
    };
    let queues = declared?;
    crate::say(&format!(
        "the topology is up to date: {queues} queues are declared and bound"
    ));
    Ok(ExitCode::SUCCESS)
}

fn printed(settings: &Settings, arguments: &PermissionArguments) -> anyhow::Result<String> {
    let options = rabbit_options(settings, "topology");
    let pools = match arguments.pools.as_slice() {
        [] => std::slice::from_ref(&settings.worker.pool),
        pools => pools,
    };
    let mut accounts = vec![
        Account::Deploy,
        Account::Executor,
        Account::Listener,
        Account::Stats,
        Account::Api,
    ];
    accounts.extend(pools.iter().cloned().map(Account::Worker));
    accounts.extend(arguments.clients.iter().cloned().map(Account::Client));
    let permissions = accounts.iter().map(|account| options.permission(account));
    let permissions: Vec<Permission> = permissions.collect::<Result<_, _>>()?;
    let vhost = options.vhost()?;
    match arguments.format {
        Format::Rabbitmqctl => Ok(lines(&vhost, &permissions)),
        Format::Json => Ok(format!("{:#}\n", definitions(&vhost, &permissions))),
    }
}

/// As a shell takes it: none of the texts has a quote but for a virtual host.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn lines(vhost: &str, permissions: &[Permission]) -> String {
    let vhost = quoted(vhost);
    let mut text = String::from(
        "# Each user, then what it may do. add_user reads the password from its input; a user that exists keeps its own.\n",
    );
    for permission in permissions {
        let user = &permission.user;
        let [configure, write, read] =
            [&permission.configure, &permission.write, &permission.read].map(|it| quoted(it));
        // Writing to a text cannot fail.
        writeln!(text, "\nrabbitmqctl add_user {user}").ok();
        writeln!(
            text,
            "rabbitmqctl set_permissions -p {vhost} {user} {configure} {write} {read}"
        )
        .ok();
        for key in &permission.keys {
            let [exchange, write, read] =
                [&key.exchange, &key.write, &key.read].map(|it| quoted(it));
            writeln!(
                text,
                "rabbitmqctl set_topic_permissions -p {vhost} {user} {exchange} {write} {read}"
            )
            .ok();
        }
    }
    text
}

fn definitions(vhost: &str, permissions: &[Permission]) -> serde_json::Value {
    let rights = permissions.iter().map(|it| {
        json!({
            "user": it.user, "vhost": vhost,
            "configure": it.configure, "write": it.write, "read": it.read,
        })
    });
    let keys = permissions.iter().flat_map(|it| {
        it.keys.iter().map(move |key| {
            json!({
                "user": it.user, "vhost": vhost,
                "exchange": key.exchange, "write": key.write, "read": key.read,
            })
        })
    });
    json!({
        "permissions": rights.collect::<Vec<_>>(),
        "topic_permissions": keys.collect::<Vec<_>>(),
    })
}
