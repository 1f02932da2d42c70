//! The roles in one process, seen from inside it.

use attune_bus::{Outgoing, Topic};
use attune_config::Loader;
use attune_testkit::{Api, duplicate_completions};

use super::*;

/// Nobody outside can publish on the bus inside the process, so this scenario runs here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_duplicate_completions() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut settings = Loader::new().load()?.settings;
    settings.wiring = attune_config::Wiring::Embedded;
    settings.data_dir = folder.path().to_owned();
    settings.api.listen = (std::net::Ipv4Addr::LOCALHOST, 0).into();
    let (shutdown, health, metrics) = (Shutdown::new(), Health::new(), Metrics::new());
    let parts = Parts::open(&settings, "test", &shutdown).await?;
    let running = start(&settings, &Role::ALL, &parts, &health, &metrics, &shutdown).await?;
    let address = running.api.context("the API is one of the roles")?;
    let api = Api::new(format!("http://{address}"))?;
    api.until_ready().await?;

    let publish = async |messages: Vec<_>| {
        let outgoing = |(id, body)| Outgoing::new(Topic::Completed, id, body);
        let messages = messages.into_iter().map(outgoing).collect();
        parts.bus.publish(messages).await?;
        Ok(())
    };
    let stale = async || api.metric("executor_completions_stale_total").await;
    duplicate_completions(&api, publish, stale).await?;

    shutdown.cancel();
    shutdown.wait(Duration::from_secs(60)).await?;
    parts.close().await;
    Ok(())
}
