//! Servers that are not there yet when a daemon starts.

use std::collections::BTreeMap;

use anyhow::ensure;
use attune_testkit::{Broker, Database, Launch, Process, Proxy, variable, wait_for};

/// A daemon waits for each server and for the schema, says for which, and goes on when it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_servers_come_late() -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("attune-it-").tempdir()?;
    let (database, broker) = tokio::try_join!(Database::create(), Broker::create())?;
    let to_database = Proxy::start(database.url()).await?;
    let to_broker = Proxy::start(broker.url()).await?;
    to_database.cut();
    to_broker.cut();
    let settings = [
        ("database.url", to_database.url(database.url())?),
        ("broker.url", to_broker.url(broker.url())?),
        ("broker.prefix", broker.prefix().to_owned()),
        ("cluster.partitions", "1".to_owned()),
        ("log.format", "text".to_owned()),
    ];
    let settings = settings.into_iter().filter(|(_, value)| !value.is_empty());
    let env: BTreeMap<_, _> = settings
        .map(|(key, value)| (variable(key), value))
        .collect();
    let launch = |role: &str| Launch {
        name: role.to_owned(),
        binary: env!("CARGO_BIN_EXE_attune").into(),
        args: vec![role.to_owned()],
        env: env.clone(),
        folder: folder.path().to_owned(),
    };
    let mut executor = Process::spawn(launch("executor"))?;
    let says = async |words: &str| {
        wait_for(&format!("the words {words:?} in the log"), async || {
            let log = executor.log();
            ensure!(log.contains(words), "{log}");
            Ok(())
        })
        .await
    };
    says(&format!(
        "waiting for PostgreSQL at {} for 0 s",
        to_database.address()
    ))
    .await?;
    to_database.restore();
    says("waiting for the schema").await?;
    let mut migrate = Process::spawn(launch("migrate"))?;
    ensure!(migrate.end().await?.success(), "{}", migrate.tail());
    says(&format!(
        "waiting for RabbitMQ at {} for 0 s",
        to_broker.address()
    ))
    .await?;
    let log = executor.log();
    ensure!(!log.contains("Owner") && executor.is_running()?, "{log}");
    to_broker.restore();
    executor.ready().await?;
    executor.stop().await
}
