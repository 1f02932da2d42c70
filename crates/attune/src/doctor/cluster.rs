//! Who is there, who decides for what, and how the queues are: what the leases and figures in the database say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use attune_api::{QueueDefaults, Verdict, verdicts};
use attune_api_types::HealthState;
use attune_runtime::error_chain;
use attune_store::{DeadLetterFilter, Lease, LeaseTrouble, Store};
use attune_store_sqlite::holder;

use super::database::answered;
use super::finding::{Findings, State};
use super::pages::{
    AUDIT, CONFIGURATION, DEAD_LETTERS, HEALTH, HISTORY_DAYS, LACKS_KEY, NO_DAY, NO_ENDS, NO_OWNER,
    RABBITMQ, STUCK, WORKERS,
};
use super::{Patient, chain};
use crate::parts::{database_file, rabbit_options};

/// Queues that are judged, the longest first.
const QUEUES: u32 = 1000;
/// Of how many of something the names are said.
const NAMED: usize = 3;
/// Days to come that have a table in the history, at least.
const DAYS_AHEAD: u64 = 2;
/// A dead letter that came within this time is one to look at now.
const NEW_LETTER: Duration = Duration::from_secs(24 * 3600);

pub(super) async fn look(patient: &Patient, store: &Arc<dyn Store>) -> Findings {
    let mut found = Findings::of("cluster");
    let store = &**store;
    let is_idle =
        patient.is_embedded() && matches!(holder(&database_file(&patient.settings)), Ok(None));
    partitions(patient, store, &mut found).await;
    if is_idle {
        found.skip("owners", "nobody uses the file");
    } else {
        leases(store, &mut found).await;
        workers(patient, store, &mut found).await;
    }
    queues(patient, store, is_idle, &mut found).await;
    stock(store, &mut found).await;
    letters(store, &mut found).await;
    audit(store, &mut found).await;
    chain::look(store, &mut found).await;
    if !patient.is_embedded() {
        bus(patient, store, &mut found).await;
    }
    found
}

/// Whether all agree on how many partitions there are.
async fn partitions(patient: &Patient, store: &dyn Store, found: &mut Findings) {
    let own = patient.settings.cluster.partitions;
    let Some(made_with) = answered(found, "partitions", store.partition_count()).await else {
        return;
    };
    match made_with {
        Some(made_with) if made_with != own => {
            let says = format!(
                "cluster.partitions is {own}, and the cluster was made with {made_with}, which cannot change"
            );
            let advice = format!("set cluster.partitions to {made_with}");
            found.problem("partitions", says, (&advice, CONFIGURATION));
        }
        Some(made_with) => found.ok("partitions", format!("{made_with}, as the settings say")),
        None => found.skip(
            "partitions",
            "no executor has started yet, so they are not fixed",
        ),
    }
}

/// Who owns the partitions.
async fn leases(store: &dyn Store, found: &mut Findings) {
    let Some(leases) = answered(found, "owners", store.leases()).await else {
        return;
    };
    let Some(executors) = answered(found, "executors", store.executors()).await else {
        return;
    };
    let living: Vec<_> = executors
        .iter()
        .filter(|it| !it.remaining.is_zero())
        .collect();
    let names = named(living.iter().map(|it| it.name.clone()));
    let cut_off = named(
        living
            .iter()
            .filter(|it| it.cut_off)
            .map(|it| it.name.clone()),
    );
    let advice_cut = "see what their /readyz and log say of the broker";
    let faults = [
        (
            living.is_empty(),
            State::Problem,
            "no executor lives: nothing is accepted and nothing starts".to_owned(),
            ("start `attune executor`", NO_OWNER),
        ),
        (
            !cut_off.is_empty(),
            State::Problem,
            format!("cut off from the broker: {cut_off}"),
            (advice_cut, RABBITMQ),
        ),
    ];
    found.first("executors", faults, || {
        format!("{} live: {names}", living.len())
    });
    let free: Vec<&Lease> = leases.iter().filter(|it| it.owner.is_none()).collect();
    let longest = free.iter().map(|it| it.free_for).max().unwrap_or_default();
    let which = named(free.iter().map(|it| it.partition.to_string()));
    let trouble = leases
        .iter()
        .find_map(|it| Some((it.partition, it.trouble.as_ref()?)));
    let says = match free.iter().filter(|it| it.holder.is_some()).count() {
        0 => format!("{} of {} have no owner: {which}", free.len(), leases.len()),
        over => format!(
            "{} of {} have no owner: {which}; {over} leases ran out, {} s ago",
            free.len(),
            leases.len(),
            longest.as_secs()
        ),
    };
    let advice =
        "wait for a lease (executor.lease.ttl_seconds), then see the logs of the executors";
    let kept_from = match trouble {
        Some((_, trouble)) if trouble.words.starts_with(LeaseTrouble::NO_ENDS) => (
            "start the completion listener and see its log; name its user in broker.parts of each executor",
            NO_ENDS,
        ),
        _ => ("see what is kept from its work, and why", HEALTH),
    };
    let trouble =
        trouble.map(|(partition, trouble)| format!("partition {partition}: {}", trouble.words));
    let faults = [
        (
            leases.is_empty(),
            State::Problem,
            "there are none".to_owned(),
            ("start `attune executor`", NO_OWNER),
        ),
        (!free.is_empty(), State::Problem, says, (advice, NO_OWNER)),
        (
            trouble.is_some(),
            State::Problem,
            trouble.unwrap_or_default(),
            kept_from,
        ),
    ];
    found.first("owners", faults, || {
        format!("all {} partitions have one", leases.len())
    });
}

/// Who runs executions.
async fn workers(patient: &Patient, store: &dyn Store, found: &mut Findings) {
    let Some(workers) = answered(found, "workers", store.workers()).await else {
        return;
    };
    let (living, gone): (Vec<_>, Vec<_>) = workers.iter().partition(|it| !it.remaining.is_zero());
    // Its third renewal would be the one that is missing.
    let late = patient.settings.worker.lease.ttl() / 3 * 2;
    let is_late = |seen: Option<Duration>| seen.is_some_and(|ago| ago > late);
    let late = named(
        living
            .iter()
            .filter(|it| is_late(it.seen_ago))
            .map(|it| it.name.clone()),
    );
    let mut pools: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for worker in living.iter().filter(|it| !it.draining) {
        let pool = pools.entry(&worker.pool).or_default();
        *pool = (pool.0 + 1, pool.1 + u64::from(worker.slots));
    }
    let each = pools
        .iter()
        .map(|(pool, (count, slots))| format!("{pool}: {count}, {slots} slots"));
    let says = format!("{} live ({})", living.len(), named(each));
    let faults = [
        (
            pools.is_empty(),
            State::Problem,
            format!(
                "none lives that takes work: nothing runs ({} gone within a day)",
                gone.len()
            ),
            (
                "start `attune worker` for each pool that actions name",
                WORKERS,
            ),
        ),
        (
            !late.is_empty(),
            State::Warning,
            format!("have not renewed their leases in time: {late}"),
            (
                "look whether they hang, or are cut off from PostgreSQL",
                WORKERS,
            ),
        ),
    ];
    found.first("workers", faults, || says);
}

/// How the queues are, by the rules of the server.
async fn queues(patient: &Patient, store: &dyn Store, is_idle: bool, found: &mut Findings) {
    if is_idle {
        return found.skip("queues", "nobody uses the file, so nothing is decided");
    }
    let queue = &patient.settings.executor.queue;
    let defaults = QueueDefaults {
        max_queue_length: u32::try_from(queue.max_queue_length).unwrap_or(u32::MAX),
        queue_timeout: queue.queue_timeout(),
    };
    let settings = (patient.settings.cluster.partitions, defaults);
    let Some(all) = answered(found, "queues", verdicts(store, settings, QUEUES)).await else {
        return;
    };
    let of = |state: HealthState| {
        let ill = all.iter().filter(move |it| it.health.state == state);
        ill.map(|it| format!("{} ({})", it.action_ref, it.health.reasons.join("; ")))
    };
    let (unhealthy, degraded) = (of(HealthState::Unhealthy), of(HealthState::Degraded));
    let (ill, weak) = (unhealthy.clone().count(), degraded.clone().count());
    let advice = "`attune queues REF` and `attune explain ID` say what is waited for";
    let faults = [
        (
            ill > 0,
            State::Problem,
            format!("{ill} unhealthy: {}", named(unhealthy)),
            (advice, STUCK),
        ),
        (
            weak > 0,
            State::Warning,
            format!("{weak} degraded: {}", named(degraded)),
            (advice, HEALTH),
        ),
    ];
    found.first("queues", faults, || {
        format!("{} judged, all healthy", all.len())
    });
    keys(patient, &all, found);
}

/// Whether workers lack a key with which something that waits is sealed.
fn keys(patient: &Patient, all: &[Verdict], found: &mut Findings) {
    let lacking = all
        .iter()
        .filter_map(|it| Some((it.lacks_key.as_ref()?, &it.action_ref)));
    let mut keys: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
    for (key, action_ref) in lacking {
        keys.entry(key).or_default().push(action_ref);
    }
    if keys.is_empty() {
        return found.ok("keys", "no worker is known to lack one");
    }
    let own = crate::secrets::keyring(&patient.settings).unwrap_or_default();
    for (key, refs) in keys {
        let refs = named(refs.into_iter().cloned());
        let here = if own.has(key) {
            "has it"
        } else {
            "does not have it"
        };
        let says = format!(
            "workers lack the key `{key}`, and give back what is sealed with it: {refs}; secrets.key_file here {here}"
        );
        let advice = format!(
            "put the line `{key}:…` into secrets.key_file of each worker, and start it again; what a key that is lost \
             has sealed is never opened again: cancel it"
        );
        found.problem("keys", says, (&advice, LACKS_KEY));
    }
}

/// What the upkeep looks after.
async fn stock(store: &dyn Store, found: &mut Findings) {
    let Some(stock) = answered(found, "history", store.stock()).await else {
        return;
    };
    let advice = (
        "the role `stats` makes them: see whether it runs, and its log",
        HISTORY_DAYS,
    );
    match stock.days_ahead {
        None => found.ok("history", "kept in one table"),
        Some(days) => {
            let says = format!("tables for {days} days to come");
            let faults = [
                (days == 0, State::Problem, says.clone(), advice),
                (days < DAYS_AHEAD, State::Warning, says.clone(), advice),
            ];
            found.first("history", faults, || says);
        }
    }
    let says = format!("{} rows of the history lie in no day", stock.of_no_day);
    let advice = ("see whether a clock was wrong", NO_DAY);
    found.first(
        "days",
        [(stock.of_no_day > 0, State::Warning, says, advice)],
        || "every row has its day".to_owned(),
    );
}

async fn letters(store: &dyn Store, found: &mut Findings) {
    let filter = DeadLetterFilter::default();
    let asking = store.list_dead_letters(&filter, None, 1);
    let Some(newest) = answered(found, "dead letters", asking).await else {
        return;
    };
    let Some(letter) = newest.first() else {
        return found.ok("dead letters", "none are kept");
    };
    let Some(now) = answered(found, "dead letters", store.now()).await else {
        return;
    };
    let age = (now - letter.received_at).to_std().unwrap_or_default();
    let says = format!("the newest came {} ago: {}", ago(age), letter.reason);
    let advice = (
        "`attune dead-letters list` shows them; put back or leave each",
        DEAD_LETTERS,
    );
    let is_new = age < NEW_LETTER && letter.requeued_at.is_none();
    found.first(
        "dead letters",
        [(is_new, State::Warning, says.clone(), advice)],
        || says,
    );
}

async fn audit(store: &dyn Store, found: &mut Findings) {
    let Some(newest) = answered(found, "audit log", store.audit_log(None, 1)).await else {
        return;
    };
    let Some(unchained) = answered(found, "audit log", store.unchained_audit()).await else {
        return;
    };
    let says = format!("{unchained} entries are no links of the chain: somebody wrote past it");
    let advice = (
        "`attune audit verify` walks the chain; ask who was in the database",
        AUDIT,
    );
    found.first(
        "audit log",
        [(unchained > 0, State::Problem, says, advice)],
        || match newest.first() {
            Some(entry) => format!(
                "the newest entry is {} by {}; `attune audit verify` looks at all",
                entry.what, entry.who
            ),
            None => "it is empty".to_owned(),
        },
    );
}

/// Whether the settings lead to the place where all others meet.
async fn bus(patient: &Patient, store: &dyn Store, found: &mut Findings) {
    let Some(noted) = answered(found, "meeting place", store.noted_bus()).await else {
        return;
    };
    let own = match rabbit_options(&patient.settings, "doctor").bus_name() {
        Ok(own) => own,
        Err(error) => return found.skip("meeting place", error_chain(&error)),
    };
    match noted {
        Some(noted) if noted != own => {
            let says = format!("the settings lead to {own}, and all others meet in {noted}");
            let advice = "set broker.url and broker.prefix alike in all processes";
            found.problem("meeting place", says, (advice, RABBITMQ));
        }
        Some(noted) => found.ok("meeting place", noted),
        None => found.skip(
            "meeting place",
            "no process has connected to the broker yet",
        ),
    }
}

/// The first few names, and how many more there are.
fn named(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    let more = names.len().saturating_sub(NAMED);
    let shown = names.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
    match more {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn ago(age: Duration) -> String {
    match age.as_secs() {
        seconds @ ..=119 => format!("{seconds} s"),
        seconds @ ..=7199 => format!("{} min", seconds / 60),
        seconds @ ..=172_799 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
