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
mod tests {
    use attune_api_types::PartitionView;
    use attune_core::{Attempt, Epoch, OwnerId, WorkerId};

    use super::super::tests::{queue, record};
    use super::*;

    /// An action of the pool `gpu` with this limit, an executor, and a worker with two slots.
    fn well(limit: Option<u32>) -> Around {
        Around {
            cluster: Some(Cluster {
                executors: Vec::new(),
                partitions: vec![PartitionView {
                    partition: PartitionId(7),
                    owner: Some(OwnerId::fresh()),
                    owner_name: Some("x-1".to_owned()),
                    epoch: Epoch(3),
                    lease_remaining_ms: 9000,
                }],
                workers: vec![WorkerView {
                    id: WorkerId::fresh(),
                    name: "w-1".to_owned(),
                    pool: "gpu".to_owned(),
                    slots: 2,
                    alive: true,
                    lease_remaining_ms: 9000,
                    seen_ago_ms: Some(10),
                }],
            }),
            action: Some(Bounds {
                limit,
                pool: "gpu".to_owned(),
            }),
            holders: limit.map(|_| Vec::new()),
            queue: None,
        }
    }

    fn cluster(around: &mut Around) -> &mut Cluster {
        around.cluster.as_mut().unwrap()
    }

    /// As the store shows a partition whose executor was killed.
    fn orphaned(mut around: Around) -> Around {
        cluster(&mut around).partitions[0].lease_remaining_ms = 0;
        around
    }

    /// One more slot is held, by a run on the worker.
    fn held(mut around: Around) -> Around {
        let worker = cluster(&mut around).workers[0].clone();
        around.holders.as_mut().unwrap().push(Holder {
            execution_id: ExecutionId(8),
            attempt: Attempt(1),
            status: Status::Running,
            requested_at: None,
            held_ms: 10,
            started_at: None,
            cancel_requested: false,
            worker: Some(HolderWorker {
                id: worker.id,
                name: Some(worker.name),
                pool: Some(worker.pool),
                seen_ago_ms: Some(10),
                lease_remaining_ms: 9000,
                lost_for_ms: 0,
            }),
        });
        around
    }

    fn queued_after(around: &Around, seconds: i64) -> String {
        let record = record(7, Status::Queued);
        queued(
            &record,
            around,
            record.created + TimeDelta::seconds(seconds),
        )
    }

    #[test]
    fn without_an_owner_no_executor_decides() {
        let nobody = "nobody owns its partition 7";
        let mut early = record(7, Status::Queued);
        early.not_before = Some(early.created + TimeDelta::seconds(65));
        let mut around = orphaned(well(Some(1)));
        assert_eq!(
            queued(&early, &around, early.created),
            format!(
                "for its time, 1m 5s from now; {nobody}, so no executor decides \
                 (`attune cluster`, /readyz)"
            )
        );
        let late = early.created + TimeDelta::seconds(66);
        let granted = "so nothing is granted (`attune cluster`, /readyz)";
        assert_eq!(
            queued(&early, &around, late),
            format!("for an executor: {nobody}, {granted}")
        );
        around = held(around);
        assert_eq!(
            queued_after(&around, 60),
            "for a slot: 1 of 1 is taken (`attune queues holders core.echo`); nobody would hand \
             one on: no executor owns its partition 7 (`attune cluster`, /readyz)"
        );
        let mut never = well(None);
        cluster(&mut never).partitions[0].owner = None;
        assert_eq!(
            queued_after(&never, 60),
            format!("for an executor: {nobody}, {granted}")
        );
    }

    #[test]
    fn with_an_owner_slots_decide() {
        let mut early = record(7, Status::Queued);
        early.not_before = Some(early.created + TimeDelta::seconds(65));
        let around = well(Some(2));
        let words = queued(&early, &around, early.created);
        assert_eq!(words, "for its time, 1m 5s from now");
        let past = early.created + TimeDelta::seconds(66);
        let soon = "for the next round of its executor \"x-1\"";
        assert_eq!(queued(&early, &around, past), soon);
        assert_eq!(queued_after(&around, 1), soon);
        assert_eq!(
            queued_after(&held(around), 3),
            "for its executor \"x-1\", which has granted it no slot although only 1 of 2 is taken \
             just now (see its log)"
        );
        assert_eq!(
            queued_after(&well(None), 3),
            "for its executor \"x-1\", which has granted it no slot although its action has no \
             limit (see its log)"
        );
        assert_eq!(
            queued_after(&held(held(well(Some(2)))), 3),
            "for a slot: 2 of 2 are taken (`attune queues holders core.echo`)"
        );
        let mut granted = held(well(Some(1)));
        granted.holders.as_mut().unwrap()[0].execution_id = ExecutionId(7);
        assert_eq!(
            queued_after(&granted, 3),
            "for nothing: it has been granted a slot at this moment"
        );
    }

    /// How full a queue is never is why something waits, and old figures are no reason to think
    /// that a slot is free.
    #[test]
    fn of_the_figures_only_a_number_is_told_with_its_age() {
        let mut around = held(well(Some(1)));
        let slot = "for a slot: 1 of 1 is taken (`attune queues holders core.echo`)";
        // The figures say that no slot is taken.
        around.queue = Some(queue(12, 0, Some(1)));
        let words = queued_after(&around, 60);
        assert_eq!(words, format!("{slot}; 12 wait in all (as of 1.2s ago)"));
        around.queue.as_mut().unwrap().age_ms = Some(900_000);
        assert_eq!(
            queued_after(&around, 60),
            format!("{slot}; 12 wait in all (as of 15m 0s ago, does a stats daemon run?)")
        );
        around.queue = Some(queue(1, 1, Some(1)));
        around.queue.as_mut().unwrap().age_ms = Some(0);
        let words = queued_after(&around, 60);
        assert_eq!(words, format!("{slot}; 1 waits in all (as of now)"));
        around.queue = Some(queue(0, 1, Some(1)));
        assert_eq!(queued_after(&around, 60), slot);
        // Nobody tells figures where nobody owns the queue; that is no fault of the stats daemon.
        around.queue = Some(queue(12, 0, Some(1)));
        around.queue.as_mut().unwrap().age_ms = Some(900_000);
        let words = queued_after(&orphaned(around), 60);
        assert!(
            words.ends_with("12 wait in all (as of 15m 0s ago)"),
            "{words}"
        );
    }

    #[test]
    fn a_pool_without_workers_keeps_all_waiting() {
        let mut around = held(well(Some(1)));
        cluster(&mut around).workers[0].alive = false;
        let words = queued_after(&around, 60);
        assert!(
            words.ends_with("; no worker of its pool \"gpu\" is alive"),
            "{words}"
        );
        let words = requested(&record(7, Status::Requested), &around);
        assert_eq!(
            words,
            "for a worker of its pool \"gpu\" to take it up; no worker of that pool is alive \
             (`attune cluster`)"
        );
    }

    #[test]
    fn what_has_a_slot_says_which_workers_it_waits_for() {
        let mut execution = record(7, Status::Requested);
        let of_pool = "for a worker of its pool \"gpu\" to take it up";
        let around = held(well(Some(3)));
        assert_eq!(
            requested(&execution, &around),
            format!("{of_pool}; its one living worker has 2 slots for all actions of the pool")
        );
        let mut around = held(around);
        assert_eq!(
            requested(&execution, &around),
            format!("{of_pool}; all 2 slots of its one living worker are taken")
        );
        let mut second = cluster(&mut around).workers[0].clone();
        second.id = WorkerId::fresh();
        cluster(&mut around).workers.push(second);
        let around = orphaned(around);
        assert_eq!(
            requested(&execution, &around),
            format!(
                "{of_pool}; its 2 living workers have 4 slots for all actions of the pool; nobody \
                 owns its partition 7, so nobody sends it again (`attune cluster`, /readyz)"
            )
        );
        execution.cancel_requested = true;
        let words = requested(&execution, &around);
        let cancelled = format!("{of_pool} and end it unrun: it is being cancelled; ");
        assert!(words.starts_with(&cancelled), "{words}");
    }

    #[test]
    fn a_run_whose_worker_is_lost_says_so() {
        let execution = record(8, Status::Running);
        let around = held(well(Some(1)));
        let holder = around.holders.as_ref().unwrap()[0].clone();
        assert_eq!(lost_worker(&execution, holder.clone()), None);
        let mut dead = holder;
        let worker = dead.worker.as_mut().unwrap();
        (worker.lease_remaining_ms, worker.lost_for_ms) = (0, 12_000);
        assert_eq!(lost_worker(&record(9, Status::Running), dead.clone()), None);
        let mut worker = lost_worker(&execution, dead).unwrap();
        let partition = PartitionId(7);
        assert_eq!(
            lost(&worker, partition, around.cluster.as_ref()),
            "\"w-1\", its lease was lost 12.0s ago; the executor \"x-1\" takes the slot back after \
             the grace time"
        );
        worker.name = None;
        let around = orphaned(around);
        assert_eq!(
            lost(&worker, partition, around.cluster.as_ref()),
            "its lease was lost 12.0s ago; nobody owns the partition 7, so nobody takes the slot \
             back (`attune cluster`, /readyz)"
        );
    }

    #[test]
    fn what_cannot_be_seen_is_not_guessed() {
        assert_eq!(
            queued_after(&Around::default(), 60),
            "for its executor; whether one decides could not be seen (`attune cluster`)"
        );
        let mut around = well(Some(1));
        around.holders = None;
        assert_eq!(
            queued_after(&around, 60),
            "for its executor \"x-1\"; who holds slots could not be seen"
        );
        let mut around = held(well(Some(1)));
        around.cluster = None;
        let words = queued_after(&around, 60);
        assert!(words.starts_with("for a slot: 1 of 1 is taken"), "{words}");
        assert!(
            words.ends_with("whether an executor decides could not be seen (`attune cluster`)"),
            "{words}"
        );
        assert_eq!(
            requested(&record(7, Status::Requested), &Around::default()),
            "for a worker of its pool to take it up; who works could not be seen (`attune cluster`)"
        );
    }
}
