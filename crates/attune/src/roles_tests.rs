//! The roles in one process, seen from inside it.

use attune_bus::{Outgoing, Topic};
use attune_config::Loader;
use attune_executor::owner::Trouble;
use attune_runtime::ComponentState;
use attune_testkit::{Api, duplicate_completions};

use super::executor::{TROUBLE, lasting};
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

/// Its components say nothing of the store: beside the API's own `/readyz` it would stay green.
#[test]
fn a_process_with_the_api_has_no_second_readiness() {
    let mut settings = Loader::new().load().unwrap().settings;
    assert_eq!(ops_listen(&settings, &[Role::Worker]), None);
    let listen = Some((std::net::Ipv4Addr::LOCALHOST, 9000).into());
    settings.metrics.listen = listen;
    for role in Role::ALL {
        let expected = listen.filter(|_| role != Role::Api);
        assert_eq!(ops_listen(&settings, &[role]), expected, "{role:?}");
    }
    assert_eq!(ops_listen(&settings, &Role::ALL), None);
}

/// A moment of trouble is nobody's business; one that lasts is, until it is over.
#[tokio::test]
async fn an_executor_that_cannot_work_for_long_is_not_ready() {
    let health = Health::new();
    let (troubles, seen) = watch::channel(None);
    let shutdown = Shutdown::new();
    show_troubles(&health, "executor.decisions", seen, lasting, &shutdown);
    let trouble = |for_ms| Trouble {
        for_ms,
        words: "the store refuses what is decided about partition 3: disk full".to_owned(),
    };
    assert_eq!(lasting(&Some(trouble(TROUBLE))), None);
    health.wait_ready().await;
    troubles.send_replace(Some(trouble(TROUBLE + 1)));
    let red = async {
        while health.snapshot().ready {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DRAIN, red).await.expect("it is shown");
    let shown_as = health.snapshot().components["executor.decisions"].clone();
    assert_eq!(shown_as, ComponentState::Waiting(trouble(0).words));
    troubles.send_replace(None);
    health.wait_ready().await;
    drop(troubles);
    shutdown.cancel();
    let ended = shutdown.wait(DRAIN).await;
    ended.expect("it ends with the executor");
}
