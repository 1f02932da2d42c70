//! The role `api`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use attune_api::{
    Addresses, ApiOptions, ApiServer, ClientRates, LiveQueues, OpsListen, Ports, QueueDefaults,
};
use attune_bus::BusError;
use attune_commands::{ClientOptions, CommandClient};
use attune_config::{RateSettings, Settings, TlsSettings};
use attune_core::{ActionId, QueueStats};
use attune_identity::Rate;
use attune_runtime::http::{Tls, TlsError, TlsFiles};
use attune_runtime::{Health, Metrics, Shutdown, descriptors, metrics_router, retry_until_ready};
use tokio::signal::unix::{SignalKind, signal};

use crate::parts::{Parts, settle};
use crate::roles::{ExecutorView, Own, clamp, spawn};

impl ExecutorView {
    /// The queues, for the API to look at.
    pub(crate) fn live(&self) -> Arc<dyn LiveQueues> {
        Arc::new(InMemory(self.queues.clone()))
    }
}

struct InMemory(attune_executor::QueuesView);

impl LiveQueues for InMemory {
    fn get_queue_stats(&self, action: ActionId) -> Option<QueueStats> {
        self.0.get_queue_stats(action)
    }

    fn get_all_queue_stats(&self) -> Vec<QueueStats> {
        self.0.get_all_queue_stats()
    }
}

/// How often it is looked whether the certificates have changed.
const TLS_LOOK: Duration = Duration::from_secs(60);
/// Descriptors that are kept for anything but connections of clients, at the least.
const RESERVE: usize = 256;
/// What a process needs besides what its settings say: its own files and connections, and its
/// listener of probes.
const OWN: usize = 96;
/// What a program that runs needs in the process that started it: three pipes and a handle.
const OF_A_RUN: usize = 4;

/// Starts it on addresses that were taken with these options; gives the address of the API.
pub(crate) async fn start(
    settings: &Settings,
    (addresses, options): (Addresses, ApiOptions),
    parts: &Parts,
    (health, metrics, live): (&Health, &Metrics, Option<Arc<dyn LiveQueues>>),
    ((stop, ended), recorder): Own,
    shutdown: &Shutdown,
) -> anyhow::Result<SocketAddr> {
    let partitions = settings.cluster.partitions;
    let mut client = ClientOptions::new(partitions);
    client.max_message_bytes = settings.broker.max_message_bytes;
    let starting = retry_until_ready("the answers to commands", shutdown, || async {
        let started = CommandClient::start(parts.bus.clone(), client.clone()).await;
        settle(started, |error| matches!(error, BusError::Unavailable(_)))
    });
    let commands = starting.await??;
    let (store, bus) = (parts.store.clone(), parts.bus.clone());
    let ports = Ports::new(store, bus, Arc::new(commands), partitions)
        .with_health(health.clone())
        .with_live_queues(live)
        .with_recorder(recorder)
        .with_spans(metrics.spans().clone());
    if let Some(tls) = &options.tls {
        tls.export(&metrics.meter("tls"));
        // Without TLS it ends the process, as it always did: a terminal that is closed says it.
        let hangup = signal(SignalKind::hangup())?;
        let following = Arc::clone(tls).follow(TLS_LOOK, hangup, shutdown.token().clone());
        shutdown.spawn("tls", following);
    }
    let extra = metrics_router(metrics.clone());
    let server = ApiServer::on(addresses, options, ports, extra);
    server.export(&metrics.meter("api"));
    let address = server.local_addr()?;
    spawn(shutdown, "api", server.serve(stop), ended);
    Ok(address)
}

/// What it is told, in a process that also `runs` programs or does not. Says when the limit of
/// descriptors leaves less than the settings ask for.
///
/// # Errors
/// When a certificate or its key cannot be used, or the keys of secrets.
pub(crate) fn options(settings: &Settings, runs: bool) -> anyhow::Result<ApiOptions> {
    let api = &settings.api;
    let mut options = ApiOptions::new(api.listen, settings.cluster.partitions);
    options.auth = api.auth();
    options.rates = client_rates(&api.rates);
    options.proxies = api
        .behind_proxy
        .then(|| api.trusted_proxies.as_slice().into());
    options.ops_network = settings.ops.network;
    options.tls = tls(&api.tls)?.map(Arc::new);
    options.secrets = crate::secrets::keyring(settings)?;
    options.max_body_bytes = api.max_body_bytes;
    options.max_message_bytes = settings.broker.max_message_bytes;
    options.submit_timeout = api.submit_timeout();
    options.max_page_size = clamp(api.max_page_size);
    options.max_connections_per_peer = api.max_connections_per_peer;
    options.ops = settings.ops.listen.map_or(
        OpsListen::Near(attune_config::OpsSettings::DEFAULT_LISTEN),
        OpsListen::At,
    );
    options.queue = QueueDefaults {
        max_queue_length: clamp(settings.executor.queue.max_queue_length),
        queue_timeout: settings.executor.queue.queue_timeout(),
    };
    let (wanted, limit) = (options.max_connections, descriptors::limit());
    let room = descriptors::room(limit, reserve(settings, runs));
    options.max_connections = wanted.min(room);
    options.max_connections_per_peer = options.max_connections_per_peer.min(room);
    if room < api.max_connections_per_peer {
        tracing::warn!(
            "api.max_connections_per_peer counts as {room}, and no more connections are served in all: \
             the process may open {limit} files and sockets; raise that (`ulimit -n`, LimitNOFILE=)"
        );
    } else if room < wanted {
        tracing::info!(
            "{room} connections are served at once, and not {wanted}: the process may open {limit} \
             files and sockets"
        );
    }
    Ok(options)
}

/// What the settings name, read.
fn tls(settings: &TlsSettings) -> Result<Option<Tls>, TlsError> {
    let (Some(cert), Some(key)) = (settings.cert_file.clone(), settings.key_file.clone()) else {
        return Ok(None);
    };
    let files = TlsFiles {
        section: "api.tls",
        cert,
        key,
        client_ca: settings.client_ca_file.clone(),
    };
    Tls::load(files).map(Some)
}

fn client_rates(rates: &RateSettings) -> ClientRates {
    let rate = |per_second, burst| Rate { per_second, burst };
    ClientRates {
        submit: rate(rates.submit_per_second, rates.submit_burst),
        read: rate(rates.read_per_second, rates.read_burst),
        change: rate(rates.change_per_second, rates.change_burst),
        failures_per_minute: rates.failures_per_minute,
    }
}

/// Descriptors that connections of clients must leave.
pub(crate) fn reserve(settings: &Settings, runs: bool) -> usize {
    let database = usize::try_from(settings.database.max_connections).unwrap_or(usize::MAX);
    let programs = if runs {
        OF_A_RUN * settings.worker.slots
    } else {
        0
    };
    RESERVE.max(database.saturating_add(OWN + programs))
}
