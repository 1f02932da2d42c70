//! Why an execution waits, and whether whoever runs it is still there: `attune executions show`.
//!
//! What keeps an execution from a slot its executor says; who owns partitions and which workers live is read
//! from the store at this moment.

use attune_api_types::{
    ActionView, Cluster, Execution, ExplainView, Holder, HolderList, HolderWorker, WorkerView,
};
use attune_core::explain::Reason;
use attune_core::{Attempt, ExecutionId, PartitionId, Status};
use chrono::{DateTime, Utc};

use super::holders;
use super::http::Http;
use super::pauses;
use super::render::{duration, millis};

/// Where to look when no executor decides.
const WHERE: &str = "`attune cluster`, /readyz";

/// What else there is to say about an execution.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Remarks {
    /// What it waits for.
    pub(super) waits: Option<String>,
    /// What is wrong with the worker that runs it.
    pub(super) worker: Option<String>,
}

/// What is known around an execution. A part is missing when it could not be read.
#[derive(Debug, Default)]
struct Around {
    cluster: Option<Cluster>,
    /// The pool of its action.
    pool: Option<String>,
    /// Who holds the action's slots, of what has one; only of an action with a limit.
    holders: Option<Vec<Holder>>,
    /// What its executor says of it, of what has none; or why it says nothing.
    explained: Option<Result<ExplainView, String>>,
}

/// Whether somebody decides for an execution.
enum Owner<'a> {
    Lives(&'a str),
    Nobody,
    /// The leases could not be read.
    Unknown,
}

/// What is to be said about an execution. That something around it cannot be seen is no reason to
/// show nothing of it.
pub(super) async fn remarks(http: &Http, record: &Execution) -> Remarks {
    match record.status {
        Status::Queued => Remarks {
            waits: Some(queued(record, &around(http, record).await, Utc::now())),
            worker: None,
        },
        Status::Requested => Remarks {
            waits: Some(
                match kept(http, record)
                    .await
                    .or_else(|| next_try(record, Utc::now()))
                {
                    Some(words) => words,
                    None => requested(record, &around(http, record).await),
                },
            ),
            worker: None,
        },
        Status::Running => {
            let path = format!("/actions/{}/holders", record.action_ref);
            let before = ExecutionId(record.id.0 - 1).to_string();
            let query = [("after", Some(before)), ("limit", Some("1".to_owned()))];
            let found: Option<HolderList> = http.get(&path, &query).await.ok();
            let found = found.and_then(|list| list.holders.into_iter().next());
            let Some(worker) = found.and_then(|holder| worker_of(record, holder)) else {
                return Remarks::default();
            };
            let words = match worker.lease_remaining_ms {
                0 => {
                    let cluster = http.get("/cluster", &[]).await.ok();
                    Some(lost(&worker, record.id.partition(), cluster.as_ref()))
                }
                _ => silent(&worker),
            };
            Remarks {
                waits: None,
                worker: words,
            }
        }
        _ => Remarks::default(),
    }
}

/// What is wrong beside its queue with an execution that has not ended: with who would run it, or runs it.
pub(super) async fn troubles(http: &Http, record: &Execution) -> Option<String> {
    match record.status {
        Status::Queued => {
            let action: ActionView = http
                .get(&format!("/actions/{}", record.action_ref), &[])
                .await
                .ok()?;
            let around = Around {
                cluster: http.get("/cluster", &[]).await.ok(),
                pool: Some(action.spec.pool),
                ..Around::default()
            };
            idle_pool(&around)
        }
        _ => remarks(http, record).await.worker,
    }
}

/// That no worker lives of the pool that would run it, or that none lets hear of itself.
fn idle_pool(around: &Around) -> Option<String> {
    let (pool, living) = (around.pool.as_ref()?, living(around)?);
    let of_pool = format!("of its pool {pool:?}");
    match living.is_empty() {
        true => Some(format!("no worker {of_pool} is alive")),
        false => silent_pool(&living, &of_pool),
    }
}

/// That none of the workers whose leases hold lets hear of itself.
fn silent_pool(living: &[&WorkerView], of_pool: &str) -> Option<String> {
    let silences = living
        .iter()
        .map(|it| silence(it.seen_ago_ms, it.lease_remaining_ms));
    let silences: Option<Vec<u64>> = silences.collect();
    let since = millis(silences?.into_iter().min()?);
    let left = millis(living.iter().map(|it| it.lease_remaining_ms).max()?);
    Some(match living.len() {
        1 => format!(
            "the one worker {of_pool} has given no sign of life for {since}; its lease ends in {left}"
        ),
        many => format!(
            "none of the {many} workers {of_pool} has given a sign of life for {since}; the last of \
             their leases ends in {left}"
        ),
    })
}

/// For how long a worker whose lease holds has given no sign of life, in milliseconds, if that is longer than any
/// that is well is silent: half of its lease.
fn silence(seen_ago_ms: Option<u64>, lease_remaining_ms: u64) -> Option<u64> {
    seen_ago_ms.filter(|silent| lease_remaining_ms > 0 && *silent > lease_remaining_ms)
}

/// For what an execution waits that keeps its slot until it is tried again, as far as its row says.
fn next_try(record: &Execution, now: DateTime<Utc>) -> Option<String> {
    let until = record.not_before.filter(|until| *until > now)?;
    record.last_error.as_ref()?;
    let wait = duration(until - now);
    Some(format!(
        "for its next try, {wait} from now; it keeps its slot"
    ))
}

/// For what an execution waits that keeps its slot: its executor knows whether more than the time keeps it. Or one
/// that was given back before.
async fn kept(http: &Http, record: &Execution) -> Option<String> {
    if record.last_error.is_none() && record.attempt == Attempt(1) {
        return None;
    }
    let path = format!("/executions/{}/explain", record.id);
    let view: ExplainView = http.get(&path, &[]).await.ok()?;
    (!view.waits_for.is_empty()).then(|| explained(&view))
}

/// Whether an execution waits for a worker that has a key.
pub(super) fn is_for_key(view: &ExplainView) -> bool {
    let mut waits_for = view.waits_for.iter();
    waits_for.any(|reason| matches!(reason, Reason::Key { .. }))
}

async fn around(http: &Http, record: &Execution) -> Around {
    let path = format!("/actions/{}", record.action_ref);
    let action: Option<ActionView> = http.get(&path, &[]).await.ok();
    let cluster: Option<Cluster> = http.get("/cluster", &[]).await.ok();
    let mut around = Around {
        cluster,
        pool: action.as_ref().map(|action| action.spec.pool.clone()),
        ..Around::default()
    };
    if record.status != Status::Queued {
        let limit = action.and_then(|action| action.spec.policy.concurrency.limit);
        if limit.is_some() {
            let list = holders::all(http, &record.action_ref).await.ok();
            around.holders = list.map(|list| list.holders);
        }
        return around;
    }
    let owner = owner(around.cluster.as_ref(), record.id.partition());
    if !matches!(owner, Owner::Nobody) {
        let path = format!("/executions/{}/explain", record.id);
        let explained = http.get(&path, &[]).await;
        around.explained = Some(explained.map_err(|error| error.to_string()));
    }
    around
}

/// Why an execution has no slot yet.
fn queued(record: &Execution, around: &Around, now: DateTime<Utc>) -> String {
    let partition = record.id.partition();
    let mut said = Vec::new();
    match (&around.explained, owner(around.cluster.as_ref(), partition)) {
        (Some(Ok(view)), _) => said.push(explained(view)),
        (Some(Err(why)), Owner::Lives(name)) => said.push(format!(
            "for its executor {name:?}, which does not say what for: {why}"
        )),
        (Some(Err(why)), _) => said.push(format!("for what could not be seen: {why}")),
        (None, _) => {
            let delay = record.not_before.filter(|until| *until > now);
            said.extend(
                delay.map(|until| format!("for its time, {} from now", duration(until - now))),
            );
            said.push(format!(
                "for an executor: nobody owns its partition {partition}, so nothing is granted ({WHERE})"
            ));
        }
    }
    said.extend(idle_pool(around));
    said.join("; ")
}

/// What an executor says of who waits, in one line.
fn explained(view: &ExplainView) -> String {
    let mut said = view.waits.clone();
    if let Some(held) = pauses::of_queue(&view.pauses, 1) {
        said.push_str(&format!(" ({held})"));
    }
    if view.estimate.is_some()
        && let Some(starts) = &view.starts
    {
        said.push_str(&format!("; it starts {starts}"));
    }
    said
}

/// Why an execution that has a slot does not run yet.
fn requested(record: &Execution, around: &Around) -> String {
    let pool = match &around.pool {
        Some(pool) => format!("its pool {pool:?}"),
        None => "its pool".to_owned(),
    };
    let mut said = vec![if record.cancel_requested {
        format!("for its worker, of {pool}, to end it: it is being cancelled")
    } else {
        format!("for its worker, of {pool}, to say that it runs")
    }];
    said.push(match living(around).as_deref() {
        None => "who works could not be seen (`attune cluster`)".to_owned(),
        Some([]) => "no worker of that pool is alive (`attune cluster`)".to_owned(),
        Some(living) => {
            silent_pool(living, "of that pool").unwrap_or_else(|| of_living(around, living))
        }
    });
    let partition = record.id.partition();
    if let Owner::Nobody = owner(around.cluster.as_ref(), partition) {
        said.push(format!(
            "nobody owns its partition {partition}, so nobody sends it again ({WHERE})"
        ));
    }
    said.join("; ")
}

/// What the living workers of the pool could take. Other actions use the same slots, so that of
/// this action's runs they may only be seen to be full, never to be free.
fn of_living(around: &Around, living: &[&WorkerView]) -> String {
    let slots: u64 = living.iter().map(|worker| u64::from(worker.slots)).sum();
    let runs = around.holders.iter().flatten().filter(|holder| {
        let worker = holder.worker.as_ref().map(|worker| worker.id);
        worker.is_some_and(|id| living.iter().any(|it| it.id == id))
    });
    let taken = runs.count() as u64 >= slots;
    let (workers, have) = match living.len() {
        1 => ("its one living worker".to_owned(), "has"),
        many => (format!("its {many} living workers"), "have"),
    };
    if taken {
        format!("all {slots} slots of {workers} are taken")
    } else {
        format!("{workers} {have} {slots} slots for all actions of the pool")
    }
}

/// The worker that runs an execution.
fn worker_of(record: &Execution, holder: Holder) -> Option<HolderWorker> {
    let same = holder.execution_id == record.id && holder.attempt == record.attempt;
    holder.worker.filter(|_| same)
}

/// That a worker whose lease holds lets hear nothing of itself.
fn silent(worker: &HolderWorker) -> Option<String> {
    let since = millis(silence(worker.seen_ago_ms, worker.lease_remaining_ms)?);
    let left = millis(worker.lease_remaining_ms);
    let name = match &worker.name {
        Some(name) => format!("its worker {name:?}"),
        None => "its worker".to_owned(),
    };
    Some(format!(
        "{name} has given no sign of life for {since}; its lease ends in {left}"
    ))
}

/// What becomes of a slot whose worker is lost.
fn lost(worker: &HolderWorker, partition: PartitionId, cluster: Option<&Cluster>) -> String {
    let ago = millis(worker.lost_for_ms);
    let name = match &worker.name {
        Some(name) => format!("{name:?}, its"),
        None => "its".to_owned(),
    };
    let then = match owner(cluster, partition) {
        Owner::Lives(owner) => {
            format!("the executor {owner:?} takes the slot back after the grace time")
        }
        Owner::Nobody => {
            format!(
                "nobody owns the partition {partition}, so nobody takes the slot back ({WHERE})"
            )
        }
        Owner::Unknown => "an executor takes the slot back after the grace time".to_owned(),
    };
    format!("{name} lease was lost {ago} ago; {then}")
}

fn owner(cluster: Option<&Cluster>, partition: PartitionId) -> Owner<'_> {
    let mut partitions = cluster.iter().flat_map(|cluster| &cluster.partitions);
    match partitions.find(|it| it.partition == partition) {
        None => Owner::Unknown,
        Some(found) if found.owner.is_some() && found.lease_remaining_ms > 0 => {
            Owner::Lives(found.owner_name.as_deref().unwrap_or_default())
        }
        Some(_) => Owner::Nobody,
    }
}

/// The living workers of the action's pool.
fn living(around: &Around) -> Option<Vec<&WorkerView>> {
    let (cluster, pool) = (around.cluster.as_ref()?, around.pool.as_ref()?);
    let workers = cluster.workers.iter();
    let living = workers.filter(|worker| worker.alive && worker.pool == *pool);
    Some(living.collect())
}

#[cfg(test)]
#[path = "waits_tests.rs"]
mod tests;
