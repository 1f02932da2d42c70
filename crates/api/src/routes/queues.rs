//! `/api/v1/actions/{ref}/queue-stats` and `/api/v1/queue-stats`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use attune_core::policy::{OnFull, OnLimit, QueueBounds};
use attune_core::{
    ActionId, ActionSpec, DemandRule, PartitionId, PolicySet, QueueStats, WorkerId, millis,
};
use attune_store::{
    AuditStore, LeaseTrouble, PartitionStore, PauseSet, StatsCursor, Store, StoreError,
    StoredStats, Violations, WorkerStore,
};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use chrono::{DateTime, Utc};

use super::App;
use super::actions::ref_of;
use super::pauses;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::health::{Bounds, VIOLATION_SHOWN, WhenFull, judge, lacked_key};
use crate::options::QueueDefaults;
use crate::query::{NoParams, Params, decode_queue_cursor, encode_queue_cursor};
use attune_api_types::{PauseView, QueueHealth, QueueList, QueueView};

/// What a row is thought to need, in bytes, as long as its page is not read.
const ROW_BYTES: usize = 1024;

/// The queue of one action.
#[utoipa::path(
    get, path = "/actions/{ref}/queue-stats", tag = "queues", operation_id = "show_queue",
    params(("ref" = String, Path, description = "The action's ref, as in `core.http.get`.")),
    responses((status = 200, description = "The queue, with a verdict.", body = QueueView))
)]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<QueueView>, ApiError> {
    let action_ref = ref_of(path)?;
    let found = app.ports.actions.find_action(&action_ref).await?;
    let Some(action) = found.filter(|_| caller.is_shown(action_ref.as_str())) else {
        return Err(ApiError::no_action(action_ref.as_str()));
    };
    let kind = Kind::of(&action.spec);
    let policies = app.policies.read(&app.ports).await?;
    let bounds = policies.bounds(&action_ref, action.spec.policy.queue);
    let limits = Limits::of(bounds, kind, app.options.queue);
    let stored = app.ports.stats.find_by_action(action.id).await?;
    let refs = [action_ref.to_string()];
    let violations = app.ports.audit.violations(VIOLATION_SHOWN, &refs).await?;
    let figures = Figures::of(&app, action.id, stored, Utc::now()).unwrap_or(Figures {
        stats: QueueStats {
            action_id: action.id,
            queue_length: 0,
            active_count: 0,
            max_concurrent: action.spec.policy.concurrency.limit,
            oldest_enqueued_at: None,
            total_enqueued: 0,
            total_completed: 0,
            total_cancelled: 0,
            total_expired: 0,
            lacks_key: None,
        },
        last_updated: None,
        as_of: None,
    });
    let workers = Lives::read(&*app.ports.workers).await?;
    let pool = action.spec.pool.as_str();
    let troubles = troubles(&*app.ports.partitions).await?;
    let limits = Limits {
        unserved_pool: (!workers.pools.contains(pool)).then_some(pool),
        trouble: troubles.get(&PartitionId::of(
            action_ref.as_str(),
            app.options.partitions,
        )),
        keyless_worker: workers.keyless(&figures.stats),
        ..limits
    };
    let held = pauses::of_action(
        &pauses::held(&*app.ports.partitions).await?,
        action_ref.as_str(),
    );
    let view = figures.view(action_ref.into(), limits, held, &violations, Utc::now());
    Ok(Json(view))
}

/// Queues that ever held something, the longest first, in pages.
#[utoipa::path(
    get, path = "/queue-stats", tag = "queues", operation_id = "list_queues",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: `api.max_page_size` unless given, at most `api.max_page_size`."),
        ("cursor" = Option<String>, Query, description = "The `next` of the page before."),
    ),
    responses((status = 200, description = "A page, the longest queue first.", body = QueueList))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    let mut params = Params::of(&uri)?;
    let max = app.options.max_page_size;
    let limit = params.parse("limit")?.unwrap_or(max);
    let after = params
        .take("cursor")?
        .map(|text| decode_queue_cursor(&text))
        .transpose()?;
    params.end("limit, cursor")?;
    if !(1..=max).contains(&limit) {
        return Err(ApiError::field(
            "limit",
            format!("`limit` must be from 1 to {max}"),
        ));
    }
    let memory = app.memory.reserve(limit as usize * ROW_BYTES).await?;
    let page = app.ports.stats.list_queue_stats(after, limit).await?;
    let last = page.rows.last().map(|row| StatsCursor {
        queue_length: row.stats.queue_length,
        action_id: row.stats.action_id,
    });
    let full = page.rows.len() == limit as usize;
    let next = last.filter(|_| full && page.total > u64::from(limit));
    let unwritten = if full || after.is_some() {
        Vec::new()
    } else {
        unwritten(&app, &page.rows)
    };
    let now = Utc::now();
    let refs: Vec<String> = page
        .rows
        .iter()
        .map(|row| row.action_ref.clone())
        .chain(unwritten.iter().map(|known| known.action_ref.clone()))
        .collect();
    let around = Around {
        violations: violations(&*app.ports.audit, &refs).await?,
        workers: Lives::read(&*app.ports.workers).await?,
        troubles: troubles(&*app.ports.partitions).await?,
        held: pauses::held(&*app.ports.partitions).await?,
        policies: app.policies.read(&app.ports).await?,
        partitions: app.options.partitions,
        defaults: app.options.queue,
    };
    let total = page.total + unwritten.len() as u64;
    let written = page.rows.into_iter().filter_map(|row| {
        let (action_ref, pool) = (row.action_ref.clone(), row.pool.clone());
        let bounds = (row.bounds, Kind::stored(&row));
        let figures = Figures::of(&app, row.stats.action_id, Some(row), now)?;
        Some((action_ref, pool, bounds, figures))
    });
    let unwritten = unwritten.into_iter().filter_map(|known| {
        let figures = Figures::of(&app, known.action_id, None, now)?;
        let bounds = (known.bounds, known.kind);
        Some((known.action_ref, known.pool, bounds, figures))
    });
    let mut queues: Vec<QueueView> = written
        .chain(unwritten)
        .map(|(action_ref, pool, bounds, figures)| {
            around.view(action_ref, &pool, bounds, figures, now)
        })
        .collect();
    queues.sort_by_key(|queue| std::cmp::Reverse(queue.queue_length));
    Ok(memory.json(&QueueList {
        queues,
        total,
        next: next.map(encode_queue_cursor),
    }))
}

/// What is said of a queue by those who look at all of them.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The action's ref.
    pub action_ref: String,
    /// Its health, as the server tells it.
    pub health: QueueHealth,
    /// The id of the key that its workers lack, where that is said of its health.
    pub lacks_key: Option<String>,
}

/// The verdicts on the longest queues, `limit` of them, from what the store has and nothing else: for who looks after a
/// system without asking its server.
///
/// # Errors
/// When the store fails.
pub async fn verdicts(
    store: &dyn Store,
    (partitions, defaults): (u16, QueueDefaults),
    limit: u32,
) -> Result<Vec<Verdict>, StoreError> {
    let page = store.list_queue_stats(None, limit).await?;
    let refs: Vec<String> = page.rows.iter().map(|row| row.action_ref.clone()).collect();
    let policies = store.policies(None).await?;
    let around = Around {
        violations: violations(store, &refs).await?,
        workers: Lives::read(store).await?,
        troubles: troubles(store).await?,
        held: pauses::held(store).await?,
        policies: Arc::new(policies.map(|stored| stored.set().0).unwrap_or_default()),
        partitions,
        defaults,
    };
    let now = store.now().await?;
    let verdict = |row: StoredStats| {
        let (action_ref, pool) = (row.action_ref.clone(), row.pool.clone());
        let bounds = (row.bounds, Kind::stored(&row));
        let figures = Figures::stored(row);
        let lacks_key = lacked_key(&figures.stats, now).map(|lacks| lacks.key.clone());
        let view = around.view(action_ref, &pool, bounds, figures, now);
        Verdict {
            action_ref: view.action_ref,
            health: view.health,
            lacks_key,
        }
    };
    Ok(page.rows.into_iter().map(verdict).collect())
}

/// What queues are judged by besides their figures.
struct Around {
    violations: HashMap<String, Vec<Violations>>,
    workers: Lives,
    troubles: HashMap<PartitionId, LeaseTrouble>,
    held: PauseSet,
    policies: Arc<PolicySet>,
    partitions: u16,
    defaults: QueueDefaults,
}

impl Around {
    fn view(
        &self,
        action_ref: String,
        pool: &str,
        (own, kind): (QueueBounds, Kind),
        figures: Figures,
        now: DateTime<Utc>,
    ) -> QueueView {
        let parsed = action_ref.parse().ok();
        let bounds = parsed.map_or(own, |action_ref| self.policies.bounds(&action_ref, own));
        let partition = PartitionId::of(&action_ref, self.partitions);
        let limits = Limits {
            unserved_pool: (!self.workers.pools.contains(pool)).then_some(pool),
            trouble: self.troubles.get(&partition),
            keyless_worker: self.workers.keyless(&figures.stats),
            ..Limits::of(bounds, kind, self.defaults)
        };
        let found = self.violations.get(&action_ref);
        let found = found.map_or(&[][..], Vec::as_slice);
        let held = pauses::of_action(&self.held, &action_ref);
        figures.view(action_ref, limits, held, found, now)
    }
}

/// A queue that is in memory and was not written down yet.
struct Unwritten {
    action_id: ActionId,
    action_ref: String,
    pool: String,
    bounds: QueueBounds,
    kind: Kind,
}

/// The queues in this process's memory that `rows` lacks, as far as this server knows their
/// actions: those that were first used a moment ago, through this server.
fn unwritten(app: &App, rows: &[StoredStats]) -> Vec<Unwritten> {
    let Some(live) = &app.ports.live else {
        return Vec::new();
    };
    let written: HashSet<ActionId> = rows.iter().map(|row| row.stats.action_id).collect();
    let missing: HashSet<ActionId> = live
        .get_all_queue_stats()
        .into_iter()
        .filter(|stats| stats.total_enqueued > 0 && !written.contains(&stats.action_id))
        .map(|stats| stats.action_id)
        .collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let mut found = app.catalog.of_ids(&missing);
    found.sort_by(|one, other| one.spec.action_ref.cmp(&other.spec.action_ref));
    let found = found.into_iter().map(|action| Unwritten {
        action_id: action.id,
        kind: Kind::of(&action.spec),
        action_ref: action.spec.action_ref.into(),
        pool: action.spec.pool,
        bounds: action.spec.policy.queue,
    });
    found.collect()
}

/// What is known of a queue, and which moment it describes.
struct Figures {
    stats: QueueStats,
    last_updated: Option<DateTime<Utc>>,
    as_of: Option<DateTime<Utc>>,
}

impl Figures {
    /// As the queue is now where this process has its owner, else as its snapshot says.
    fn of(
        app: &App,
        action: ActionId,
        stored: Option<StoredStats>,
        now: DateTime<Utc>,
    ) -> Option<Self> {
        let last_updated = stored.as_ref().map(|row| row.last_updated);
        let live = app.ports.live.as_ref();
        if let Some(stats) = live.and_then(|live| live.get_queue_stats(action)) {
            return Some(Self {
                stats,
                last_updated,
                as_of: Some(now),
            });
        }
        stored.map(Self::stored)
    }

    /// As its snapshot says.
    fn stored(row: StoredStats) -> Self {
        Self {
            stats: row.stats,
            last_updated: Some(row.last_updated),
            as_of: Some(row.last_updated),
        }
    }

    fn view(
        self,
        action_ref: String,
        limits: Limits<'_>,
        pauses: Vec<PauseView>,
        violations: &[Violations],
        now: DateTime<Utc>,
    ) -> QueueView {
        let bounds = Bounds {
            max_length: limits.max_length,
            unserved_pool: limits.unserved_pool,
            trouble: limits.trouble,
            keyless_worker: limits.keyless_worker,
            held: !pauses.is_empty(),
            grouped: limits.kind.grouped,
            counted: limits.kind.counted,
            when_full: limits.when_full,
        };
        let age = self.as_of.map(|at| (now - at).to_std().unwrap_or_default());
        QueueView {
            health: judge(&self.stats, self.as_of, bounds, violations, now),
            action_ref,
            action_id: self.stats.action_id,
            queue_length: self.stats.queue_length,
            active_count: self.stats.active_count,
            max_concurrent: self.stats.max_concurrent,
            oldest_enqueued_at: self.stats.oldest_enqueued_at,
            total_enqueued: self.stats.total_enqueued,
            total_completed: self.stats.total_completed,
            total_cancelled: self.stats.total_cancelled,
            total_expired: self.stats.total_expired,
            last_updated: self.last_updated,
            as_of: self.as_of,
            age_ms: age.map(millis),
            max_length: limits.max_length,
            timeout_seconds: limits.timeout_seconds,
            pauses,
        }
    }
}

/// What is known of workers.
struct Lives {
    /// The pools of which one lives.
    pools: HashSet<String>,
    /// How they are called, those that are gone too.
    names: HashMap<WorkerId, String>,
}

impl Lives {
    async fn read(workers: &dyn WorkerStore) -> Result<Self, StoreError> {
        let workers = workers.workers().await?;
        let living = workers.iter().filter(|worker| !worker.remaining.is_zero());
        let pools = living.map(|worker| worker.pool.clone()).collect();
        let names = workers
            .into_iter()
            .map(|worker| (worker.worker, worker.name));
        let names = names.collect();
        Ok(Self { pools, names })
    }

    /// How the worker is called that lacked a key last.
    fn keyless(&self, stats: &QueueStats) -> Option<&str> {
        let worker = stats.lacks_key.as_ref()?.worker;
        self.names.get(&worker).map(String::as_str)
    }
}

/// What keeps the owners of partitions from their work.
async fn troubles(
    partitions: &dyn PartitionStore,
) -> Result<HashMap<PartitionId, LeaseTrouble>, StoreError> {
    let leases = partitions.leases().await?.into_iter();
    let troubles = leases.filter_map(|lease| Some((lease.partition, lease.trouble?)));
    Ok(troubles.collect())
}

/// The violations that still show in these actions, by the action's ref.
async fn violations(
    audit: &dyn AuditStore,
    refs: &[String],
) -> Result<HashMap<String, Vec<Violations>>, StoreError> {
    let mut found: HashMap<String, Vec<Violations>> = HashMap::new();
    for violation in audit.violations(VIOLATION_SHOWN, refs).await? {
        let action_ref = violation.action_ref.clone();
        found.entry(action_ref).or_default().push(violation);
    }
    Ok(found)
}

/// The bounds that hold for a queue: those of its policy in force, else the executor's settings.
#[derive(Clone, Copy)]
struct Limits<'a> {
    max_length: u32,
    timeout_seconds: u64,
    /// The pool, if no worker of it lives.
    unserved_pool: Option<&'a str>,
    /// For what those who wait may wait besides a slot.
    kind: Kind,
    /// What becomes of who comes when as many wait as may.
    when_full: WhenFull,
    /// What keeps the owner of its partition from its work.
    trouble: Option<&'a LeaseTrouble>,
    /// The name of the worker that lacked a key last, where it is known.
    keyless_worker: Option<&'a str>,
}

/// For what executions of an action may wait besides a slot of it.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// They demand different things of its limits.
    grouped: bool,
    /// Their starts are counted.
    counted: bool,
    /// Whoever comes takes the place of those who wait.
    replaces: bool,
}

impl Kind {
    fn stored(row: &StoredStats) -> Self {
        Self {
            grouped: row.grouped,
            counted: row.counted,
            replaces: row.replaces,
        }
    }

    fn of(spec: &ActionSpec) -> Self {
        let policy = &spec.policy;
        Self {
            grouped: DemandRule::of(spec).is_some(),
            counted: policy.rate_limit.is_some() || policy.min_interval_ms.is_some(),
            replaces: matches!(
                policy.concurrency.on_limit,
                Some(OnLimit::ReplaceWaiting | OnLimit::CancelRunning)
            ),
        }
    }
}

impl Limits<'_> {
    fn of(own: QueueBounds, kind: Kind, defaults: QueueDefaults) -> Self {
        Self {
            max_length: own.max_length.unwrap_or(defaults.max_queue_length),
            timeout_seconds: own
                .timeout_seconds
                .map_or(defaults.queue_timeout.as_secs(), u64::from),
            unserved_pool: None,
            // In another group than theirs it takes nobody's place.
            when_full: match own.on_full {
                _ if kind.replaces && !kind.grouped => WhenFull::Replaces,
                Some(OnFull::DropOldest) => WhenFull::DropsOldest,
                _ => WhenFull::Refused,
            },
            kind,
            trouble: None,
            keyless_worker: None,
        }
    }
}
