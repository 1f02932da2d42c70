//! `/api/v1/worker/exchange`: all that workers need that speak HTTP alone.

use std::collections::BTreeMap;
use std::time::Duration;

use attune_api_types::{ErrorBody, ExchangeRequest, Exchanged, LeaseRequest};
use attune_bus::{Outgoing, PublishError, Topic};
use attune_core::{OwnerId, PartitionId, Status, WorkerId, or_null};
use attune_messages::v1::{Completion, ExecutionCompleted};
use attune_messages::v2::{ReturnedGrant, StartedGrant, WorkerReport};
use attune_messages::{PackBounds, Packer};
use axum::Json;
use axum::extract::{Request, State};
use chrono::Utc;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;
use uuid::Uuid;

use super::App;
use super::worker::{check, renew};
use crate::auth::{Caller, unauthenticated};
use crate::body;
use crate::error::ApiError;
use crate::query::NoParams;

/// The longest wait, in milliseconds.
const MAX_WAIT_MS: u32 = 20_000;
/// How many ends, and how many reports, one call may tell.
const MAX_ITEMS: usize = 1000;
/// For how many owners one call may have reports. Each owner costs a message of its own, which the broker is
/// asked for before it is asked for what others publish; a cluster has a handful.
const MAX_OWNERS: usize = 64;

/// A `worker.report`, with whom it is for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnersReport {
    owner: OwnerId,
    #[serde(default, deserialize_with = "or_null")]
    elsewhere: u32,
    #[serde(default, deserialize_with = "or_null")]
    returned: Vec<ReturnedGrant>,
    #[serde(default, deserialize_with = "or_null")]
    started: Vec<StartedGrant>,
    #[serde(default, deserialize_with = "or_null")]
    resync: Vec<PartitionId>,
}

/// How a run can end: only some of all statuses.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum EndStatus {
    Succeeded,
    Failed,
    TimedOut,
    Cancelled,
}

/// Of the end of a run only how it ended.
#[derive(Deserialize)]
struct HowEnded {
    #[expect(dead_code, reason = "it is read to see what is wrong with it")]
    status: EndStatus,
}

/// Renews the lease of a worker that speaks HTTP alone, takes what it has to say, and answers with what it is
/// told. It can be repeated when the answer was lost.
///
/// With `wait_ms` the answer comes as soon as there are sections, or when the time is over; a later call with
/// it ends an earlier one of the same life. When a call fails, or `link` has changed, sections may be lost.
#[utoipa::path(
    post, path = "/worker/exchange", tag = "workers", operation_id = "exchange_with_worker",
    request_body = ExchangeRequest,
    responses(
        (status = 200, description = "The lease holds; the ends are kept until their owners have them.",
            body = Exchanged),
        (status = 409, description = "`LEASE_EXPIRED`: end what runs and come back under a fresh \
            id.", body = ErrorBody),
        (status = 503, description = "`NOT_KEPT`: the ends are to be told again. `NO_LINK`, `OVERLOADED`: the \
            sections are to be asked for again.", body = ErrorBody),
    )
)]
pub(crate) async fn exchange(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    request: Request,
) -> Result<Json<Exchanged>, ApiError> {
    let body = body::read(request, &app.options, &app.bodies).await?;
    let asked: ExchangeRequest = body::parse(&body)?;
    let lease = LeaseRequest {
        worker: asked.worker,
        name: asked.name,
        pool: asked.pool.clone(),
        slots: asked.slots,
        lease_seconds: asked.lease_seconds,
        draining: asked.draining,
        // What it has to say this server says for it.
        broker_user: None,
    };
    check(&lease)?;
    caller.check_pool(&lease.pool)?;
    if asked.wait_ms.is_some_and(|wait| wait > MAX_WAIT_MS) {
        let words = format!("`wait_ms` must be from 0 to {MAX_WAIT_MS}");
        return Err(ApiError::field("wait_ms", words));
    }
    let ends = ends_of(&app, asked.worker, &asked.completions)?;
    let reports = reports_of(&app, asked.worker, &asked.reports)?;
    drop((asked.completions, asked.reports, body));
    // Before anything is told: of a life that is over nothing counts.
    let lease_expires_in_ms = renew(&app, &caller, lease).await?.lease_expires_in_ms;
    tell(&app, ends, reports).await?;
    let (link, sections) = match asked.wait_ms {
        None => (None, Vec::new()),
        Some(wait_ms) => {
            let wait = u64::from(wait_ms).min(lease_expires_in_ms / 3);
            let until = Instant::now() + Duration::from_millis(wait);
            let of_key = caller.owner_of_lives();
            let heard = app.polls.hear((asked.worker, &asked.pool), of_key, until);
            let heard = heard.await?;
            // The key may have been revoked meanwhile: what its life was granted comes back with the end of its lease.
            if !caller.is_good_still().await {
                return Err(unauthenticated("the key is not good any more"));
            }
            (Some(heard.link), heard.sections)
        }
    };
    Ok(Json(Exchanged {
        lease_expires_in_ms,
        link,
        sections,
    }))
}

fn at_most(list: &str, items: &[Box<RawValue>]) -> Result<(), ApiError> {
    match items.len() <= MAX_ITEMS {
        true => Ok(()),
        false => {
            let words = format!("`{list}` has {} items, more than {MAX_ITEMS}", items.len());
            Err(ApiError::field(list, words))
        }
    }
}

/// The messages of the ends of runs.
fn ends_of(
    app: &App,
    worker: WorkerId,
    items: &[Box<RawValue>],
) -> Result<Vec<Outgoing>, ApiError> {
    const LIST: &str = "completions";
    at_most(LIST, items)?;
    let bounds = PackBounds::new(MAX_ITEMS, app.options.max_message_bytes);
    let mut packer = Packer::new(bounds);
    for (number, item) in items.iter().enumerate() {
        let refused = |error: ApiError| error.in_item(LIST, number);
        let mut end = read_end(item).map_err(refused)?;
        check_end(app, worker, &end).map_err(refused)?;
        end.worker = Some(worker);
        let added = packer.add(&ExecutionCompleted(end), ());
        added.map_err(|(problem, ())| refused(ApiError::field("", problem.to_string())))?;
    }
    let packs = packer.finish().into_iter();
    let messages = packs.map(|pack| {
        let id = Uuid::now_v7();
        Outgoing::new(Topic::Completed, id, pack.encode(id, Utc::now()))
    });
    Ok(messages.collect())
}

/// Reads the end of a run. Where its status is none that a run can end with, only those are offered.
fn read_end(item: &RawValue) -> Result<Completion, ApiError> {
    use Status::{Cancelled, Failed, Succeeded, TimedOut};
    let text = item.get().as_bytes();
    let read = body::parse::<Completion>(text);
    let is_right = match &read {
        Ok(end) => matches!(end.status, Succeeded | Failed | TimedOut | Cancelled),
        Err(error) => error.detail.field.as_deref() != Some("status"),
    };
    match is_right {
        true => read,
        false => body::parse::<HowEnded>(text).and(read),
    }
}

/// Refuses what would end among the dead letters.
fn check_end(app: &App, worker: WorkerId, end: &Completion) -> Result<(), ApiError> {
    let (id, attempt) = (end.execution_id.0, end.attempt.0);
    if id <= 0 {
        let words = format!("`execution_id` is {id}; numbers of executions are above 0");
        return Err(ApiError::field("execution_id", words));
    }
    if attempt < 1 {
        let words = format!("`attempt` is {attempt}; attempts count from 1");
        return Err(ApiError::field("attempt", words));
    }
    if end.worker.is_some_and(|of| of != worker) {
        return Err(ApiError::field(
            "worker",
            "`worker` is another than the one that says it",
        ));
    }
    let (partition, count) = (end.execution_id.partition(), app.options.partitions);
    if partition.0 >= count {
        let words = format!(
            "`execution_id` is {id}, which is of partition {partition}; the cluster's are counted from 0, and \
             there are {count}"
        );
        return Err(ApiError::field("execution_id", words));
    }
    if let Some(said) = end.partition.filter(|said| *said != partition) {
        let words = format!(
            "`partition` is {said}, but execution {id} is of partition {partition}; leave it out"
        );
        return Err(ApiError::field("partition", words));
    }
    Ok(())
}

/// The messages of the reports: what is for one owner goes together, for it is messages that cost.
fn reports_of(
    app: &App,
    worker: WorkerId,
    items: &[Box<RawValue>],
) -> Result<Vec<Outgoing>, ApiError> {
    const LIST: &str = "reports";
    at_most(LIST, items)?;
    let bounds = PackBounds::new(MAX_ITEMS, app.options.max_message_bytes);
    let mut packers: BTreeMap<OwnerId, Packer<WorkerReport>> = BTreeMap::new();
    for (number, item) in items.iter().enumerate() {
        let refused = |error: ApiError| error.in_item(LIST, number);
        let said: OwnersReport = body::parse(item.get().as_bytes()).map_err(refused)?;
        if packers.len() >= MAX_OWNERS && !packers.contains_key(&said.owner) {
            let words =
                format!("one call may have reports for {MAX_OWNERS} owners; this is another");
            return Err(refused(ApiError::field("owner", words)));
        }
        let report = WorkerReport {
            worker,
            elsewhere: said.elsewhere,
            returned: said.returned,
            started: said.started,
            resync: said.resync,
        };
        let packer = packers
            .entry(said.owner)
            .or_insert_with(|| Packer::new(bounds));
        let added = packer.add(&report, ());
        added.map_err(|(problem, ())| refused(ApiError::field("", problem.to_string())))?;
    }
    let packs = packers.into_iter().flat_map(|(owner, packer)| {
        let packs = packer.finish().into_iter();
        packs.map(move |pack| (owner, pack))
    });
    let messages = packs.map(|(owner, pack)| {
        let id = Uuid::now_v7();
        Outgoing::new(Topic::Reports(owner), id, pack.encode(id, Utc::now()))
    });
    Ok(messages.collect())
}

/// Tells owners. Only the ends must arrive: of the rest what matters is said again.
async fn tell(app: &App, ends: Vec<Outgoing>, reports: Vec<Outgoing>) -> Result<(), ApiError> {
    let kept: Vec<Uuid> = ends.iter().map(|end| end.message_id).collect();
    let mut messages = ends;
    messages.extend(reports);
    if messages.is_empty() {
        return Ok(());
    }
    let Err(error) = app.ports.bus.publish(messages).await else {
        return Ok(());
    };
    let is_lost = match &error {
        PublishError::Refused(refused) => {
            let mut refused = refused.iter().map(|one| &one.message_id);
            refused.any(|id| kept.contains(id))
        }
        PublishError::Unconfirmed(_) | PublishError::Closed => !kept.is_empty(),
    };
    match is_lost {
        true => Err(ApiError::unavailable(
            "NOT_KEPT",
            format!("whether the ends are kept is not known: {error}; tell them again"),
        )),
        false => Ok(()),
    }
}
