//! `/api/v1/actions/{ref}/queue-stats` and `/api/v1/queue-stats`.

use std::collections::HashMap;

use attune_core::{ActionId, ActionSpec, QueueStats, millis};
use attune_store::{StoredStats, Violations};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use chrono::{DateTime, Utc};

use super::App;
use super::actions::ref_of;
use crate::error::ApiError;
use crate::health::{Bounds, VIOLATION_SHOWN, judge};
use crate::options::QueueDefaults;
use crate::query::Params;
use crate::wire::{QueueList, QueueView};

/// How many actions are read at once to find the bounds of the queues of a list.
const ACTIONS_PAGE: u32 = 1000;

/// The queue of one action.
pub(crate) async fn show(
    State(app): State<App>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<QueueView>, ApiError> {
    let action_ref = ref_of(path)?;
    let Some(action) = app.ports.actions.find_action(&action_ref).await? else {
        return Err(ApiError::no_action(action_ref.as_str()));
    };
    let limits = Limits::of(Some(&action.spec), app.options.queue);
    let stored = app.ports.stats.find_by_action(action.id).await?;
    let violations = violations(&app).await?;
    let found = violations
        .get(action_ref.as_str())
        .map_or(&[][..], Vec::as_slice);
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
        },
        last_updated: None,
        as_of: None,
    });
    let view = figures.view(action_ref.into(), limits, found, Utc::now());
    Ok(Json(view))
}

/// Every queue that ever held something, the longest first.
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Json<QueueList>, ApiError> {
    let mut params = Params::of(&uri)?;
    let max = app.options.max_page_size;
    let limit = params.parse("limit")?.unwrap_or(max);
    params.end("limit")?;
    if !(1..=max).contains(&limit) {
        return Err(ApiError::field(
            "limit",
            format!("`limit` must be from 1 to {max}"),
        ));
    }
    let mut stored = app.ports.stats.list_queue_stats().await?;
    let total = stored.len() as u64;
    stored.truncate(limit as usize);
    let limits = if stored.is_empty() {
        HashMap::new()
    } else {
        limits_of_all(&app).await?
    };
    let violations = violations(&app).await?;
    let now = Utc::now();
    let mut queues: Vec<QueueView> = stored
        .into_iter()
        .filter_map(|row| {
            let (action_ref, id) = (row.action_ref.clone(), row.stats.action_id);
            let limits = limits
                .get(&action_ref)
                .copied()
                .unwrap_or_else(|| Limits::of(None, app.options.queue));
            let found = violations.get(&action_ref).map_or(&[][..], Vec::as_slice);
            let figures = Figures::of(&app, id, Some(row), now)?;
            Some(figures.view(action_ref, limits, found, now))
        })
        .collect();
    queues.sort_by_key(|queue| std::cmp::Reverse(queue.stats.queue_length));
    Ok(Json(QueueList { queues, total }))
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
        stored.map(|row| Self {
            stats: row.stats,
            last_updated,
            as_of: last_updated,
        })
    }

    fn view(
        self,
        action_ref: String,
        limits: Limits,
        violations: &[Violations],
        now: DateTime<Utc>,
    ) -> QueueView {
        let bounds = Bounds {
            max_length: limits.max_length,
        };
        let age = self.as_of.map(|at| (now - at).to_std().unwrap_or_default());
        QueueView {
            health: judge(&self.stats, self.as_of, bounds, violations, now),
            action_ref,
            stats: self.stats,
            last_updated: self.last_updated,
            as_of: self.as_of,
            age_ms: age.map(millis),
            max_length: limits.max_length,
            timeout_seconds: limits.timeout_seconds,
        }
    }
}

/// The violations that still show, by the action's ref.
async fn violations(app: &App) -> Result<HashMap<String, Vec<Violations>>, ApiError> {
    let mut found: HashMap<String, Vec<Violations>> = HashMap::new();
    for violation in app.ports.audit.violations(VIOLATION_SHOWN).await? {
        let action_ref = violation.action_ref.clone();
        found.entry(action_ref).or_default().push(violation);
    }
    Ok(found)
}

/// The bounds of every action's queue.
async fn limits_of_all(app: &App) -> Result<HashMap<String, Limits>, ApiError> {
    let mut found = HashMap::new();
    let mut after = None;
    loop {
        let page = app
            .ports
            .actions
            .list_actions(after.as_ref(), ACTIONS_PAGE)
            .await?;
        let full = page.len() == ACTIONS_PAGE as usize;
        after = page.last().map(|action| action.spec.action_ref.clone());
        for action in page {
            let limits = Limits::of(Some(&action.spec), app.options.queue);
            found.insert(action.spec.action_ref.into(), limits);
        }
        if !full {
            return Ok(found);
        }
    }
}

/// The bounds that hold for a queue: its policy's own, else the executor's settings.
#[derive(Clone, Copy)]
struct Limits {
    max_length: u32,
    timeout_seconds: u64,
}

impl Limits {
    fn of(spec: Option<&ActionSpec>, defaults: QueueDefaults) -> Self {
        let own = spec.map(|spec| spec.policy.queue).unwrap_or_default();
        Self {
            max_length: own.max_length.unwrap_or(defaults.max_queue_length),
            timeout_seconds: own
                .timeout_seconds
                .map_or(defaults.queue_timeout.as_secs(), u64::from),
        }
    }
}
