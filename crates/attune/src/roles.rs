//! The roles: each is a service on a store and a bus, alone in a daemon or all in one process.

mod figures;
mod keepers;
mod started;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use attune_api::Addresses;
use attune_config::Settings;
use attune_core::{ActionSpec, millis};
use attune_record::{ProcessPhase, Record, Recorder, TimeBounds, now_ns};
use attune_runtime::{
    Health, Metrics, Shutdown, TaskOutcome, descriptors, ops_server, systemd, telemetry,
};
use attune_store::{Store, StoreError};
use attune_worker::{HttpOptions, SecretOptions, Worker, WorkerOptions};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::parts::Parts;
use crate::{api_role, containment, exposure, folders, keys_command};
use keepers::{start_listener, start_stats};

mod executor;

use executor::start_executor;
pub(crate) use executor::{ExecutorView, all_owned};
pub(crate) use figures::instance;

/// How long the parts of a stopping process may take, beside the worker's own drain.
const DRAIN: Duration = Duration::from_secs(20);
/// How long it may take after that to close the connections.
const CLOSE: Duration = Duration::from_secs(10);
/// How long a round of a role's loop may take before the process counts as stuck: several times
/// what a call to a server may take.
const ROUND_BOUND: Duration = Duration::from_secs(60);

/// How often the bus is looked at.
const BUS_LOOK: Duration = Duration::from_secs(1);
/// How often a process that has its own database file looks whether it is still there.
const FILE_LOOK: Duration = Duration::from_secs(1);
/// How long the bus may be in trouble before the process is not ready.
const BUS_PATIENCE: Duration = Duration::from_secs(5);

/// A service of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Executor,
    CompletionListener,
    Stats,
    Worker,
    Api,
}

impl Role {
    /// All of them, in the order in which one process starts them: who receives comes before
    /// who sends.
    pub(crate) const ALL: [Self; 5] = [
        Self::Stats,
        Self::CompletionListener,
        Self::Executor,
        Self::Worker,
        Self::Api,
    ];

    /// The word for it on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Executor => "executor",
            Self::CompletionListener => "completion-listener",
            Self::Stats => "stats",
            Self::Worker => "worker",
            Self::Api => "api",
        }
    }
}

/// What a process with these roles is called.
pub(crate) fn name_of(roles: &[Role]) -> &'static str {
    match roles {
        [role] => role.name(),
        _ => "standalone",
    }
}

/// Services that run.
#[derive(Default)]
pub(crate) struct Running {
    /// The executor's figures and queues, when it is one of the roles.
    pub(crate) executor: Option<ExecutorView>,
    /// Where the API listens, when it is one of the roles.
    pub(crate) api: Option<SocketAddr>,
}

/// Runs roles as a daemon until it is told to stop.
pub(crate) async fn serve(
    settings: &Settings,
    roles: &[Role],
    log: &telemetry::Log,
) -> anyhow::Result<ExitCode> {
    // Not where programs are run, which would inherit it.
    if !roles.contains(&Role::Worker)
        && let Err(error) = descriptors::raise_limit()
    {
        tracing::warn!(error.message = %error, "the limit of open files stays as it is");
    }
    containment::check_root(settings, roles)?;
    folders::prepare(settings, roles)?;
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals()?;
    let name = name_of(roles);
    exposure::warn_of(settings, roles);
    let health = Health::new();
    let metrics = figures::of_process(settings, name, roles)?;
    log.export(&metrics.meter("log"));
    let process = health.component(name);
    process.waiting("starting");
    let parts = match Parts::open(settings, name, &shutdown).await {
        Ok(parts) => parts,
        Err(_) if shutdown.is_cancelled() => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(error),
    };
    figures::export_parts(settings, &parts, roles, &metrics);
    if settings.wiring == attune_config::Wiring::Embedded {
        apply_core_pack(parts.store.as_ref(), settings).await?;
    }
    started::note(settings, roles, &parts, &shutdown);
    // They outlive the stop: a worker may let what it runs go on for hours.
    let probes = Shutdown::new();
    if let Some(listen) = ops_listen(settings, roles) {
        let served = (listen, settings.metrics.network);
        ops_server(served, metrics.clone(), health.clone(), &probes).await?;
        shutdown.spawn("probes", until_either(probes.clone(), shutdown.clone()));
    }
    let running = match start(settings, roles, &parts, &health, &metrics, &shutdown).await {
        Ok(running) => running,
        Err(_) if shutdown.is_cancelled() => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(error),
    };
    watch_bus(&parts, &health, &shutdown);
    if settings.wiring == attune_config::Wiring::Embedded {
        watch_file(&parts, &shutdown);
        // Once everything has started: a start that fails has made no key that nobody sees again.
        if roles.contains(&Role::Api) {
            keys_command::hand_out_first_key(parts.store.as_ref(), &settings.data_dir).await?;
        }
    }
    process.ready();
    systemd::ready();
    systemd::watchdog(&health);
    if let Some(address) = running.api {
        let scheme = match settings.api.tls.cert_file {
            Some(_) => "https",
            None => "http",
        };
        crate::say(&format!("Attune listens on {scheme}://{address}"));
    }
    tracing::info!(role = name, "ready");
    shutdown.cancelled().await;
    health.stopping();
    let stopping = shutdown.wait(DRAIN + settings.worker.drain());
    let stopped = systemd::while_stopping(stopping).await;
    systemd::stopping();
    // What a server that does not answer is still asked may take for ever.
    if tokio::time::timeout(CLOSE, parts.close()).await.is_err() {
        tracing::warn!(
            "the connections were not closed within {} s; a server does not answer",
            CLOSE.as_secs()
        );
    }
    probes.cancel();
    let probed = probes.wait(CLOSE).await;
    figures::end(metrics).await;
    stopped.and(probed)?;
    Ok(ExitCode::SUCCESS)
}

/// Ends when the process is to stop, or when its probes have died: as a task that ends before the stop,
/// it then takes the process with it.
async fn until_either(probes: Shutdown, stop: Shutdown) {
    tokio::select! {
        () = probes.cancelled() => {}
        () = stop.cancelled() => {}
    }
}

/// Where a process without the API serves its probes and metrics. The API asks the store and the
/// partitions for its `/readyz`, at addresses of its own; a second one that does not would say ready
/// where the first says what is missing.
fn ops_listen(settings: &Settings, roles: &[Role]) -> Option<SocketAddr> {
    let listen = settings.metrics.listen?;
    if roles.contains(&Role::Api) {
        tracing::warn!(
            "metrics.listen {listen} is not listened on: it is for processes without the API. Here \
             /healthz, /readyz and /metrics are at api.listen and ops.listen; leave it out"
        );
        return None;
    }
    Some(listen)
}

/// The actions that every installation has.
pub(crate) async fn apply_core_pack(
    store: &dyn Store,
    settings: &Settings,
) -> Result<(), StoreError> {
    for spec in ActionSpec::core_pack() {
        // A core action whose policy was changed keeps it.
        if store.find_action(&spec.action_ref).await?.is_none() {
            store
                .apply_action(&spec, settings.cluster.partitions, "attune")
                .await?;
        }
    }
    Ok(())
}

/// Stops services in the order of the data: who brings work first, who records its end last, so
/// that what has run is recorded before the process ends.
struct Stops {
    parts: Parts,
    /// Bring work: the API and the worker.
    early: Vec<(CancellationToken, oneshot::Receiver<()>)>,
    /// Record its end.
    late: Vec<CancellationToken>,
    /// Of every role, when there is to be a history.
    recorders: Vec<Recorder>,
}

impl Stops {
    /// A token for a service, and what to drop when the service has ended.
    fn token(&mut self, role: Role) -> (CancellationToken, oneshot::Sender<()>) {
        let token = CancellationToken::new();
        let (ended, end) = oneshot::channel();
        if matches!(role, Role::Api | Role::Worker) {
            self.early.push((token.clone(), end));
        } else {
            self.late.push(token.clone());
        }
        (token, ended)
    }

    async fn run(self, shutdown: Shutdown) {
        shutdown.cancelled().await;
        for recorder in self.recorders {
            recorder.record_phase(ProcessPhase::Stopping);
        }
        let mut ends = Vec::new();
        for (token, end) in self.early {
            token.cancel();
            ends.push(end);
        }
        for end in ends {
            // An error is the end of the service: its side of the channel is dropped.
            let _ended = end.await;
        }
        self.parts.drain().await;
        for token in self.late {
            token.cancel();
        }
    }
}

/// Starts roles on a store and a bus; they stop with `shutdown`.
pub(crate) async fn start(
    settings: &Settings,
    roles: &[Role],
    parts: &Parts,
    health: &Health,
    metrics: &Metrics,
    shutdown: &Shutdown,
) -> anyhow::Result<Running> {
    let mut running = Running::default();
    let mut stops = Stops {
        parts: parts.clone(),
        early: Vec::new(),
        late: Vec::new(),
        recorders: Vec::new(),
    };
    // First, as a process that ends because an address is in use must not have begun anything: the
    // row of a worker would count as alive until its lease is over.
    let mut addresses = None;
    if roles.contains(&Role::Api) {
        let failed = "the role api could not start";
        let options = api_role::options(settings, roles.contains(&Role::Worker));
        let options = options.context(failed)?;
        let taken = Addresses::take(&options).await;
        addresses = Some((taken.context(failed)?, options));
    }
    for role in roles {
        let token = stops.token(*role);
        let recorder = recorder(settings, *role)?;
        stops.recorders.extend(recorder.clone());
        let stop = (token, recorder);
        let context = || format!("the role {} could not start", role.name());
        match role {
            Role::Executor => {
                let view = start_executor(settings, parts, (health, metrics), stop, shutdown);
                running.executor = Some(view.await.with_context(context)?);
            }
            Role::CompletionListener => {
                start_listener(settings, parts, (health, metrics), stop, shutdown)
                    .await
                    .with_context(context)?;
            }
            Role::Stats => start_stats(settings, parts, (health, metrics), stop, shutdown)
                .await
                .with_context(context)?,
            Role::Worker => {
                let guard = guard_command(settings, roles)?;
                start_worker(settings, parts, guard, (health, metrics), stop, shutdown)
                    .await
                    .with_context(context)?;
            }
            Role::Api => {
                let live = running.executor.as_ref().map(ExecutorView::live);
                let figures = (health, metrics, live);
                let addresses = addresses.take().context("a process has one API")?;
                let address = api_role::start(settings, addresses, parts, figures, stop, shutdown);
                running.api = Some(address.await.with_context(context)?);
            }
        }
    }
    shutdown.spawn("stops", stops.run(shutdown.clone()));
    Ok(running)
}

/// A service's own order to stop, what it drops when it has ended, and where it records what it
/// does.
pub(crate) type Own = ((CancellationToken, oneshot::Sender<()>), Option<Recorder>);

async fn start_worker(
    settings: &Settings,
    parts: &Parts,
    guard: Vec<OsString>,
    (health, metrics): (&Health, &Metrics),
    ((stop, ended), recorder): Own,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let worker = &settings.worker;
    let http = HttpOptions {
        allow_private_addresses: worker.http.allow_private_addresses,
        timeout: worker.http.timeout(),
        max_body_bytes: worker.http.max_body_bytes,
        max_result_bytes: HttpOptions::result_bytes(settings.broker.max_message_bytes),
    };
    let options = WorkerOptions {
        name: worker.name_or_host(),
        pool: worker.pool.clone(),
        slots: worker.slots,
        lease_ttl: worker.lease.ttl(),
        lease_grace: worker.lease.grace(),
        output_max_bytes: worker.output_max_bytes,
        kill_grace: worker.kill_grace(),
        drain: worker.drain(),
        work_dir: worker.work_dir_or_temp(),
        state_dir: worker.state_dir_or_work_dir(),
        env_allow: worker.env_allow.clone(),
        containment: containment::of(settings)?,
        secrets: SecretOptions {
            keys: crate::secrets::keyring(settings)?,
            dir: worker.secrets_dir.clone(),
            credentials: std::env::var_os("CREDENTIALS_DIRECTORY").map(Into::into),
            read: attune_config::read_private_file,
        },
        fetch: fetch_command(&http),
        http,
        max_message_bytes: settings.broker.max_message_bytes,
        guard,
        progress: health.progress("worker.loop", ROUND_BOUND),
        spans: metrics.spans().clone(),
        ..WorkerOptions::default()
    };
    let handle = Worker::start(
        options,
        parts.bus.clone(),
        parts.store.clone(),
        recorder,
        stop,
    )
    .await?;
    handle.counters().export(&metrics.meter("worker"));
    let (name, words) = ("worker.starts", Option::clone);
    show_troubles(health, name, handle.troubles(), words, shutdown);
    spawn(shutdown, "worker", handle, ended);
    Ok(())
}

/// How a worker starts its guard: as another process of this very program, which logs as this one does.
/// A process that is nothing but a worker is killed when it stands still beyond its lease.
fn guard_command(settings: &Settings, roles: &[Role]) -> anyhow::Result<Vec<OsString>> {
    let log = &settings.log;
    let format = serde_json::to_string(&log.format)?;
    let mut command = vec![
        crate::own_program(),
        "--set".into(),
        format!("log.level={}", log.level).into(),
        "--set".into(),
        format!("log.format={}", format.trim_matches('"')).into(),
        "guard".into(),
    ];
    if roles == [Role::Worker] {
        command.push("--kills-worker".into());
    }
    Ok(command)
}

/// How a worker starts a fetch of `core.http.get`: as another process of this very program.
fn fetch_command(http: &HttpOptions) -> Vec<OsString> {
    let mut command = vec![
        crate::own_program(),
        "run-http".into(),
        format!("--timeout-ms={}", millis(http.timeout)).into(),
        format!("--max-body-bytes={}", http.max_body_bytes).into(),
        format!("--max-result-bytes={}", http.max_result_bytes).into(),
    ];
    if http.allow_private_addresses {
        command.push("--allow-private-addresses".into());
    }
    command
}

/// Where a role records what it does, if that is wanted.
fn recorder(settings: &Settings, role: Role) -> anyhow::Result<Option<Recorder>> {
    let dir = settings.history.dir.as_deref();
    let recorder = dir.map(|dir| Recorder::of_role(dir, role.name()));
    Ok(recorder.transpose()?)
}

/// The times by which the history is judged.
fn bounds(settings: &Settings) -> Record {
    Record::Bounds(TimeBounds {
        partitions: settings.cluster.partitions,
        lease_ttl_ms: millis(settings.executor.lease.ttl()),
        worker_ttl_ms: millis(settings.worker.lease.ttl()),
        worker_grace_ms: millis(settings.worker.lease.grace()),
        t_ns: now_ns(),
    })
}

/// Lets readiness say what a running service cannot do at the moment, until it has ended; `words`
/// says it for people.
fn show_troubles<T: Send + Sync + 'static>(
    health: &Health,
    name: &str,
    mut troubles: watch::Receiver<T>,
    words: fn(&T) -> Option<String>,
    shutdown: &Shutdown,
) {
    let component = health.component(name);
    shutdown.spawn_finite(format!("{name}.troubles"), async move {
        loop {
            let trouble = words(&troubles.borrow_and_update());
            match trouble {
                Some(words) => component.waiting(words),
                None => component.ready(),
            }
            if troubles.changed().await.is_err() {
                return;
            }
        }
    });
}

/// Stops the process when its database file is deleted or replaced: whatever it did from then on
/// would be lost.
fn watch_file(parts: &Parts, shutdown: &Shutdown) {
    let (store, stop) = (parts.store.clone(), shutdown.clone());
    shutdown.spawn_finite("database file", async move {
        let mut look = tokio::time::interval(FILE_LOOK);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = look.tick() => {}
            }
            if let Err(error @ StoreError::Conflict(_)) = store.check().await {
                return Err(error);
            }
        }
    });
}

/// Lets readiness say that messages do not get through: the broker is away, or has lost a queue or
/// a binding and it could not be made again. What is over at once is not told.
fn watch_bus(parts: &Parts, health: &Health, shutdown: &Shutdown) {
    let (bus, component) = (parts.bus.clone(), health.component("bus"));
    let stop = shutdown.clone();
    component.ready();
    shutdown.spawn_finite("bus.troubles", async move {
        let mut since = None;
        let mut look = tokio::time::interval(BUS_LOOK);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = look.tick() => {}
            }
            match bus.check().await {
                Ok(()) => {
                    since = None;
                    component.ready();
                }
                Err(error) if since.get_or_insert_with(Instant::now).elapsed() > BUS_PATIENCE => {
                    component.waiting(error.to_string());
                }
                Err(_) => {}
            }
        }
    });
}

/// Supervises a service, and tells when it has ended.
pub(crate) fn spawn<O: TaskOutcome>(
    shutdown: &Shutdown,
    name: &str,
    service: impl Future<Output = O> + Send + 'static,
    ended: oneshot::Sender<()>,
) {
    shutdown.spawn(name, async move {
        let outcome = service.await;
        drop(ended);
        outcome
    });
}

pub(crate) fn clamp(value: impl TryInto<u32>) -> u32 {
    value.try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "roles_tests.rs"]
mod tests;
