//! Why an execution waits, and whether whoever runs it is still there: `attune executions show`.
//!
//! Who holds slots, who owns partitions and which workers live is read from the store at this
//! moment. The figures of a queue may be old, so nothing but the number of those that wait is taken
//! from them, with its age.

use attune_api_types::{
    ActionView, Cluster, Execution, Holder, HolderList, HolderWorker, QueueView, WorkerView,
};
use attune_core::{ExecutionId, PartitionId, Status};
use chrono::{DateTime, TimeDelta, Utc};

use super::holders;
use super::http::Http;
use super::pauses;
use super::queues::as_of;
use super::render::{duration, millis};

/// An execution that has waited shorter than this beside a free slot may just be on its way.
const SETTLE: TimeDelta = TimeDelta::seconds(2);
/// Owners tell the figures of a queue in which somebody waits at least every minute. Older ones
/// stand still.
const STILL_MS: u64 = 120_000;
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
    action: Option<Bounds>,
    /// Who holds the action's slots; only of an action with a limit.
    holders: Option<Vec<Holder>>,
    queue: Option<QueueView>,
}

/// What an action says about its slots.
#[derive(Debug)]
struct Bounds {
    limit: Option<u32>,
    pool: String,
    /// The places by which its executions are grouped, and the limit of each group.
    groups: Option<(String, u32)>,
    /// Whether some take more of the limits than others.
    by_cost: bool,
    /// How often they may start.
    rate: Option<String>,
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
        Status::Queued => {
            let mut around = around(http, record).await;
            let path = format!("/actions/{}/queue-stats", record.action_ref);
            around.queue = http.get(&path, &[]).await.ok();
            Remarks {
                waits: Some(queued(record, &around, Utc::now())),
                worker: None,
            }
        }
        Status::Requested => Remarks {
            waits: Some(requested(record, &around(http, record).await)),
            worker: None,
        },
        Status::Running => {
            let path = format!("/actions/{}/holders", record.action_ref);
            let before = ExecutionId(record.id.0 - 1).to_string();
            let query = [("after", Some(before)), ("limit", Some("1".to_owned()))];
            let found: Option<HolderList> = http.get(&path, &query).await.ok();
            let found = found.and_then(|list| list.holders.into_iter().next());
            let Some(worker) = found.and_then(|holder| lost_worker(record, holder)) else {
                return Remarks::default();
            };
            let cluster = http.get("/cluster", &[]).await.ok();
            let words = lost(&worker, record.id.partition(), cluster.as_ref());
            Remarks {
                waits: None,
                worker: Some(words),
            }
        }
        _ => Remarks::default(),
    }
}

async fn around(http: &Http, record: &Execution) -> Around {
    let path = format!("/actions/{}", record.action_ref);
    let action: Option<ActionView> = http.get(&path, &[]).await.ok();
    let action = action.map(|action| Bounds {
        limit: action.spec.policy.concurrency.limit,
        pool: action.spec.pool,
        groups: {
            let concurrency = &action.spec.policy.concurrency;
            let by = concurrency.group_by.iter().map(ToString::to_string);
            let by = by.collect::<Vec<_>>().join(", ");
            concurrency.group_limit.map(|limit| (by, limit))
        },
        by_cost: action.spec.policy.concurrency.cost.is_some(),
        rate: rate(&action.spec.policy),
    });
    let limited = action.as_ref().is_some_and(|action| action.limit.is_some());
    let holders = if limited {
        holders::all(http, &record.action_ref).await.ok()
    } else {
        None
    };
    Around {
        cluster: http.get("/cluster", &[]).await.ok(),
        action,
        holders: holders.map(|list| list.holders),
        queue: None,
    }
}

/// By what operators hold its queue.
fn held_by(around: &Around) -> Option<String> {
    let queue = around.queue.as_ref()?;
    pauses::of_queue(&queue.pauses, queue.active_count.max(1))
}

/// Why an execution has no slot yet.
fn queued(record: &Execution, around: &Around, now: DateTime<Utc>) -> String {
    let partition = record.id.partition();
    let owner = owner(around.cluster.as_ref(), partition);
    let held = around.holders.as_deref();
    if held.is_some_and(|held| held.iter().any(|it| it.execution_id == record.id)) {
        return "for nothing: it has been granted a slot at this moment".to_owned();
    }
    let mut said = Vec::new();
    if let Some(until) = record.not_before.filter(|until| *until > now) {
        said.push(format!("for its time, {} from now", duration(until - now)));
        said.extend(undecided(&owner, partition));
    } else if let Some(held) = held_by(around) {
        said.push(format!("for operators to resume its queue: {held}"));
        said.extend(undecided(&owner, partition));
    } else if let Some((taken, limit)) = slots(around).filter(|(taken, limit)| taken >= limit) {
        let name = &record.action_ref;
        said.push(format!(
            "for a slot: {} (`attune queues holders {name}`)",
            taken_of(taken, limit)
        ));
        said.extend(match owner {
            Owner::Nobody => Some(format!(
                "nobody would hand one on: no executor owns its partition {partition} ({WHERE})"
            )),
            _ => undecided(&owner, partition),
        });
    } else if let Some(room) = around.action.as_ref().and_then(for_room) {
        let holders = format!("`attune queues holders {}`", record.action_ref);
        said.push(format!("{room} ({holders})"));
        said.extend(match owner {
            Owner::Nobody => Some(format!(
                "nobody would hand one on: no executor owns its partition {partition} ({WHERE})"
            )),
            _ => undecided(&owner, partition),
        });
    } else {
        let since = record.not_before.unwrap_or(record.created);
        let waited = now - since.max(record.created);
        said.push(for_its_executor(around, &owner, partition, waited));
    }
    if let (Some(action), Some(0)) = (&around.action, living(around).map(|them| them.len())) {
        let pool = &action.pool;
        said.push(format!("no worker of its pool {pool:?} is alive"));
    }
    said.extend(around.queue.as_ref().and_then(|it| in_all(it, &owner)));
    said.join("; ")
}

/// What an execution waits for that has no slot though some are free, where executions demand different
/// things: which of them is not to be seen here.
fn for_room(action: &Bounds) -> Option<String> {
    let group = action.groups.as_ref().map(|(by, limit)| {
        format!("for room in its group: at most {limit} with the same {by} hold a slot at once")
    });
    let cost = action
        .by_cost
        .then(|| "for as much of the limits as it takes, or as one before it takes".to_owned());
    let all = [action.rate.clone(), group, cost];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; or "))
}

/// What the policy of an action says of how often its executions may start.
fn rate(policy: &attune_core::ActionPolicy) -> Option<String> {
    let rate = policy.rate_limit.as_ref().map(|rate| {
        let by: Vec<String> = rate.by.iter().map(ToString::to_string).collect();
        let by = match by.is_empty() {
            true => String::new(),
            false => format!(" with the same {}", by.join(", ")),
        };
        let (max, seconds) = (rate.max_executions, rate.window_seconds);
        format!("for its rate: at most {max}{by} start in any {seconds} s")
    });
    let interval = policy.min_interval_ms;
    let interval = interval.map(|it| format!("for its turn: at most one starts every {it} ms"));
    let all: Vec<String> = rate.into_iter().chain(interval).collect();
    (!all.is_empty()).then(|| all.join("; or "))
}

/// No limit keeps it waiting: it waits to be granted.
fn for_its_executor(
    around: &Around,
    owner: &Owner<'_>,
    partition: PartitionId,
    waited: TimeDelta,
) -> String {
    let name = match owner {
        Owner::Nobody => {
            return format!(
                "for an executor: nobody owns its partition {partition}, so nothing is granted \
                 ({WHERE})"
            );
        }
        Owner::Unknown => {
            return "for its executor; whether one decides could not be seen (`attune cluster`)"
                .to_owned();
        }
        Owner::Lives(name) => name,
    };
    let unlimited = around.action.as_ref().is_some_and(|it| it.limit.is_none());
    let why = match slots(around) {
        Some((taken, limit)) => format!("although only {} just now", taken_of(taken, limit)),
        None if unlimited => "although its action has no limit".to_owned(),
        None => return format!("for its executor {name:?}; who holds slots could not be seen"),
    };
    if waited < SETTLE {
        return format!("for the next round of its executor {name:?}");
    }
    format!("for its executor {name:?}, which has granted it no slot {why} (see its log)")
}

/// Why an execution that has a slot does not run yet.
fn requested(record: &Execution, around: &Around) -> String {
    let pool = match &around.action {
        Some(action) => format!("its pool {:?}", action.pool),
        None => "its pool".to_owned(),
    };
    let mut said = vec![if record.cancel_requested {
        format!("for a worker of {pool} to take it up and end it unrun: it is being cancelled")
    } else {
        format!("for a worker of {pool} to take it up")
    }];
    said.push(match living(around).as_deref() {
        None => "who works could not be seen (`attune cluster`)".to_owned(),
        Some([]) => "no worker of that pool is alive (`attune cluster`)".to_owned(),
        Some(living) => of_living(around, living),
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

/// The worker that a running execution has lost.
fn lost_worker(record: &Execution, holder: Holder) -> Option<HolderWorker> {
    let same = holder.execution_id == record.id && holder.attempt == record.attempt;
    let worker = holder.worker.filter(|_| same);
    worker.filter(|worker| worker.lease_remaining_ms == 0)
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

/// That nobody decides, or that it cannot be seen.
fn undecided(owner: &Owner<'_>, partition: PartitionId) -> Option<String> {
    match owner {
        Owner::Lives(_) => None,
        Owner::Nobody => Some(format!(
            "nobody owns its partition {partition}, so no executor decides ({WHERE})"
        )),
        Owner::Unknown => {
            Some("whether an executor decides could not be seen (`attune cluster`)".to_owned())
        }
    }
}

/// How many slots are taken, of how many; nothing if there is no limit or it cannot be seen.
fn slots(around: &Around) -> Option<(u64, u64)> {
    let limit = around.action.as_ref()?.limit?;
    Some((around.holders.as_ref()?.len() as u64, u64::from(limit)))
}

fn taken_of(taken: u64, limit: u64) -> String {
    let verb = if taken == 1 { "is" } else { "are" };
    format!("{taken} of {limit} {verb} taken")
}

/// The living workers of the action's pool.
fn living(around: &Around) -> Option<Vec<&WorkerView>> {
    let (cluster, action) = (around.cluster.as_ref()?, around.action.as_ref()?);
    let workers = cluster.workers.iter();
    let living = workers.filter(|worker| worker.alive && worker.pool == action.pool);
    Some(living.collect())
}

/// How many wait, itself among them, and which moment that describes. Its own place in the order
/// only its executor knows.
fn in_all(queue: &QueueView, owner: &Owner<'_>) -> Option<String> {
    let age = queue.age_ms.filter(|_| queue.queue_length > 0)?;
    let still = if age >= STILL_MS && matches!(owner, Owner::Lives(_)) {
        ", does a stats daemon run?"
    } else {
        ""
    };
    let (waiting, at) = (queue.queue_length, as_of(age));
    let verb = if waiting == 1 { "waits" } else { "wait" };
    Some(format!("{waiting} {verb} in all (as of {at}{still})"))
}

#[cfg(test)]
#[path = "waits_tests.rs"]
mod tests;
