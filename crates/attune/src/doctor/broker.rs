//! RabbitMQ: what it is, whether all that stays there is there and as it should be, and who reads it.

use std::time::Duration;

use attune_bus::{BusError, Depth, Topic};
use attune_bus_rabbitmq::{Arguments, BrokerLook, RabbitOptions};
use attune_config::BrokerTopology;
use attune_routing::Senders;
use tokio::sync::oneshot;
use tokio::time::timeout;
use uuid::Uuid;

use super::asking::within;
use super::finding::{Findings, SILENT, State};
use super::pages::{
    BROKER_USERS, BUS, CONFIGURATION, DEAD_LETTERS, INSTALL, NO_ENDS, RABBITMQ, SECURITY_BROKER,
};
use super::{PATIENCE, Patient};

use crate::parts::{rabbit_options, senders};
use crate::roles::Role;

const AREA: &str = "broker";
/// The oldest release that knows the arguments of the queues.
const OLDEST: [u64; 3] = [3, 10, 0];
/// The first release that looks at the keys in the headers `CC` and `BCC`.
const CHECKS_COPIES: [u64; 3] = [4, 0, 3];
/// So many ends of runs that wait are more than a listener leaves that is well.
const MANY: u32 = 1_000;
/// Of how many of something the names are said.
const NAMED: usize = 3;

pub(super) async fn look(patient: &Patient, system: oneshot::Receiver<Option<Uuid>>) -> Findings {
    let mut found = Findings::of(AREA);
    let mut options = rabbit_options(&patient.settings, "doctor");
    // Less than whoever asks waits, so that the reason is heard.
    options.connect_timeout = Duration::from_secs(2);
    let endpoint = patient.settings.broker.url.endpoint();
    let Some(mut look) = connect(&options, &endpoint, &mut found).await else {
        return found;
    };
    heartbeat(&mut look, &mut found).await;
    let compare = patient.settings.broker.topology == BrokerTopology::Apply;
    if topology(patient, &mut look, compare, &mut found)
        .await
        .is_some()
    {
        mark(&mut look, system.await.ok().flatten(), &mut found).await;
        sending(patient, &mut look, &mut found).await;
    }
    within(look.close()).await;
    found
}

async fn connect(
    options: &RabbitOptions,
    endpoint: &str,
    found: &mut Findings,
) -> Option<BrokerLook> {
    let asking = options.clone();
    let greeting = within(async move { BrokerLook::greeting(&asking).await }).await;
    let greeting = reached(greeting, endpoint, found)?;
    let asking = options.clone();
    let look = within(async move { BrokerLook::at(&asking).await }).await;
    let look = reached(look, endpoint, found)?;
    let words = format!("{} {}", greeting.product, greeting.version);
    found.ok("reachable", format!("{words} at {endpoint}"));
    let version = numbers(&greeting.version);
    let faults = [
        (
            version < OLDEST,
            State::Problem,
            format!("{words} is too old"),
            ("take 4.0.3 or newer", INSTALL),
        ),
        (
            version < CHECKS_COPIES,
            State::Warning,
            format!(
                "{words} does not look at the keys in CC and BCC: permissions on keys are void"
            ),
            (
                "take 4.0.3 or newer before you give users of it to others",
                SECURITY_BROKER,
            ),
        ),
    ];
    found.first("version", faults, || words);
    Some(look)
}

/// What the broker answered, or that it cannot be reached and why.
fn reached<T>(
    answer: Option<Result<T, BusError>>,
    endpoint: &str,
    found: &mut Findings,
) -> Option<T> {
    let (says, advice) = match answer {
        Some(Ok(answer)) => return Some(answer),
        Some(Err(error @ BusError::Refused(_))) => (
            error.to_string(),
            "mend user, password, virtual host or certificates in broker.*",
        ),
        Some(Err(error)) => (error.to_string(), "start the broker, or mend broker.url"),
        None => (
            format!(
                "RabbitMQ at {endpoint} does not answer within {} s",
                PATIENCE.as_secs()
            ),
            "look whether the broker hangs, or a firewall drops what is sent to it",
        ),
    };
    found.problem("reachable", says, (advice, BUS));
    None
}

/// What the broker answers on the connection; or why not is noted.
async fn answered<T>(
    found: &mut Findings,
    name: &'static str,
    asking: impl Future<Output = Result<T, BusError>>,
) -> Option<T> {
    if found.is_silent() {
        found.skip(name, SILENT);
        return None;
    }
    match timeout(PATIENCE, asking).await {
        Ok(Ok(answer)) => return Some(answer),
        Ok(Err(error @ BusError::Refused(_))) => {
            found.skip(name, format!("this user may not see it: {error}"));
        }
        Ok(Err(error)) => {
            found.problem(name, error.to_string(), ("see the log of the broker", BUS));
        }
        Err(_) => {
            let says = found.fell_silent();
            let advice =
                "look for alarms and queues without a leader: `rabbitmq-diagnostics check_running`";
            found.problem(name, says, (advice, BUS));
        }
    }
    None
}

async fn heartbeat(look: &mut BrokerLook, found: &mut Findings) {
    let Some(took) = answered(found, "heartbeat", look.round_trip()).await else {
        return;
    };
    let every = look.heartbeat();
    let says = format!("agreed on {every} s; it answers in {} ms", took.as_millis());
    let advice = "set broker.heartbeat_seconds, or heartbeat of the broker, above 0";
    let faults = [(every == 0, State::Warning, says.clone(), (advice, RABBITMQ))];
    found.first("heartbeat", faults, || says);
}

/// What is there of the queues and exchanges; nothing when more cannot be asked.
async fn topology(
    patient: &Patient,
    look: &mut BrokerLook,
    compare: bool,
    found: &mut Findings,
) -> Option<()> {
    let exchanges = answered(found, "exchanges", look.exchanges(compare)).await?;
    let topics = Topic::all_kept(patient.settings.cluster.partitions);
    let mut queues = Vec::new();
    for topic in &topics {
        // Each by itself: where the broker is far away all of them take longer than one may.
        queues.push(answered(found, "queues", look.queue(topic, compare)).await?);
    }
    for (name, all) in [("exchanges", &exchanges), ("queues", &queues)] {
        let missing = named(
            all.iter()
                .filter(|(_, there)| there.is_none())
                .map(|(it, _)| it),
        );
        let other = all.iter().find_map(|(_, there)| match there {
            Some((_, Arguments::Other(words))) => Some(words.clone()),
            _ => None,
        });
        let unknown = all
            .iter()
            .any(|(_, there)| matches!(there, Some((_, Arguments::Unknown))));
        let making = match compare {
            true => "start a process of this system, or run `attune topology apply`",
            false => "run `attune topology apply` as the user who may declare",
        };
        let is_elsewhere = all.iter().all(|(_, there)| there.is_none());
        let (missing, making) = match is_elsewhere {
            // Whoever made them now would have a second system beside the one that is looked for.
            true => elsewhere(name, &patient.settings.broker.prefix, &missing, making),
            false => (missing, making.to_owned()),
        };
        let faults = [
            (
                !missing.is_empty(),
                State::Problem,
                format!("missing: {missing}"),
                (making.as_str(), BROKER_USERS),
            ),
            (
                other.is_some(),
                State::Problem,
                other.unwrap_or_default(),
                (
                    "let it run empty, stop what uses it, delete it, and start again",
                    RABBITMQ,
                ),
            ),
        ];
        found.first(name, faults, || match unknown {
            false => format!("all {} are there and as they should be", all.len()),
            true => format!(
                "all {} are there; this user may not compare their arguments",
                all.len()
            ),
        });
    }
    let depths: Vec<(&Topic, &str, Depth)> = topics
        .iter()
        .zip(&queues)
        .filter_map(|(topic, (name, there))| Some((topic, name.as_str(), there.as_ref()?.0)))
        .collect();
    readers(&depths, found);
    ends(&depths, found);
    let letters = depths
        .iter()
        .find(|(topic, ..)| **topic == Topic::DeadLetters);
    if let Some((_, _, depth)) = letters {
        let says = format!("{} wait to be taken into the database", depth.messages);
        let advice = "see whether the role `stats` runs and can write";
        let faults = [(
            depth.messages > 0,
            State::Warning,
            says.clone(),
            (advice, DEAD_LETTERS),
        )];
        found.first("dead letters", faults, || says);
    }
    let has_exchanges = exchanges.iter().all(|(_, there)| there.is_some());
    has_exchanges.then_some(())
}

/// What is said where none of all is there, and what to do: most likely they have other names, or are in another
/// virtual host.
fn elsewhere(name: &str, prefix: &str, missing: &str, making: &str) -> (String, String) {
    let prefix = match prefix {
        "" => "broker.prefix is empty".to_owned(),
        prefix => format!("broker.prefix is `{prefix}`"),
    };
    let says = format!("all {name} ({missing}); {prefix}");
    let advice = format!(
        "look first whether broker.prefix, and the virtual host in broker.url, are those of the other processes; only \
         where this system has never run: {making}"
    );
    (says, advice)
}

/// Who must read what, by the role.
fn reader(topic: &Topic) -> &'static str {
    match topic {
        Topic::Completed | Topic::CompletedKept => "completion-listener",
        Topic::QueueStats | Topic::DeadLetters => "stats",
        _ => "executor",
    }
}

fn readers(depths: &[(&Topic, &str, Depth)], found: &mut Findings) {
    let unread: Vec<_> = depths
        .iter()
        .filter(|(.., depth)| depth.consumers == 0)
        .collect();
    let mut roles: Vec<&str> = unread.iter().map(|(topic, ..)| reader(topic)).collect();
    roles.sort_unstable();
    roles.dedup();
    let waiting: u64 = unread
        .iter()
        .map(|(.., depth)| u64::from(depth.messages))
        .sum();
    let names: Vec<String> = unread
        .iter()
        .map(|(_, name, _)| (*name).to_owned())
        .collect();
    if depths.is_empty() {
        return found.skip("readers", "there are no queues to be read");
    }
    let says = format!(
        "nobody reads {}, where {waiting} messages wait",
        named(names.iter())
    );
    let advice = format!(
        "see whether these run and reach the broker: {}",
        roles.join(", ")
    );
    let faults = [(
        !unread.is_empty(),
        State::Problem,
        says,
        (advice.as_str(), BUS),
    )];
    found.first("readers", faults, || {
        format!("each of {} queues is read", depths.len())
    });
}

/// Ends of runs that wait for a listener: as long as they do their slots are taken.
fn ends(depths: &[(&Topic, &str, Depth)], found: &mut Findings) {
    let of_ends = depths
        .iter()
        .filter(|(topic, ..)| matches!(topic, Topic::Completed | Topic::CompletedKept));
    let mut slow = of_ends.filter(|(.., depth)| depth.consumers > 0 && depth.messages >= MANY);
    let Some((_, name, depth)) = slow.next() else {
        return found.ok("ends", "listeners have no more to take than is usual");
    };
    let says = format!(
        "{} ends of runs wait in {name}, and keep their slots",
        depth.messages
    );
    let advice = "see the log of the completion listener: start another one where it is busy";
    found.warn("ends", says, (advice, NO_ENDS));
}

async fn mark(look: &mut BrokerLook, system: Option<Uuid>, found: &mut Findings) {
    let Some(system) = system else {
        return found.skip("mark", "whose database it is cannot be read");
    };
    let Some(marked) = answered(found, "mark", look.bears_mark(system)).await else {
        return;
    };
    let advice = "give this system another broker.prefix or virtual host";
    match marked {
        Some(true) => found.ok("mark", "the place is this system's"),
        Some(false) => found.problem(
            "mark",
            "another system with a database of its own has its messages there",
            (advice, RABBITMQ),
        ),
        None => found.skip("mark", "no process of this system has connected yet"),
    }
}

/// Whether owners of partitions listen to the user of these settings.
fn parts(patient: &Patient, senders: &Senders, found: &mut Findings) {
    // What an executor says itself its own kind takes.
    let speaks = patient.has(Role::CompletionListener) || patient.has(Role::Api);
    let own = senders
        .own
        .as_ref()
        .filter(|_| speaks && !patient.has(Role::Executor));
    let (Some(own), false) = (own, senders.parts.is_empty()) else {
        return;
    };
    let says = format!(
        "broker.parts does not name `{own}`: executors with that list refuse what it sends them"
    );
    let advice = format!("add `{own}` to broker.parts of each executor, and start it again");
    let faults = [(
        !senders.parts.contains(own),
        State::Problem,
        says,
        (advice.as_str(), BROKER_USERS),
    )];
    found.first("parts", faults, || format!("broker.parts names `{own}`"));
}

/// Whether the broker takes messages, and vouches for whom they name.
async fn sending(patient: &Patient, look: &mut BrokerLook, found: &mut Findings) {
    let named = match senders(&patient.settings, "doctor") {
        Ok(senders) => {
            parts(patient, &senders, found);
            senders.own.filter(|_| senders.required)
        }
        Err(error) => {
            return found.problem(
                "sending",
                format!("{error:#}"),
                ("mend the setting", CONFIGURATION),
            );
        }
    };
    if found.is_silent() {
        return found.skip("sending", SILENT);
    }
    let sent = timeout(PATIENCE, look.send_nowhere()).await.ok();
    let is_blocked = look.is_blocked();
    let whose = match &named {
        Some(user) => format!(", and vouches for `{user}`"),
        None => "; messages name nobody (broker.require_user_id)".to_owned(),
    };
    match sent {
        Some(Ok(Some(took))) => {
            found.ok(
                "sending",
                format!("it takes a message in {} ms{whose}", took.as_millis()),
            );
        }
        Some(Ok(None)) => found.skip("sending", "this user may send nothing"),
        Some(Err(error)) => {
            let advice = "log in as the user that broker.url names, or set broker.require_user_id";
            found.problem("sending", error.to_string(), (advice, BROKER_USERS));
        }
        None => {
            let why = match is_blocked {
                true => "it has said that it is short of memory or disk",
                false => "an alarm of memory or disk does that",
            };
            let says = format!("it takes no messages: {why}");
            let advice = "`rabbitmq-diagnostics alarms`; make room on its disk or in its memory";
            found.problem("sending", says, (advice, BUS));
        }
    }
}

/// The three numbers of a version.
fn numbers(version: &str) -> [u64; 3] {
    let mut numbers = version
        .split(|it: char| !it.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    [(); 3].map(|()| numbers.next().unwrap_or(0))
}

/// The first few names, and how many more there are.
fn named<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    let shown = names
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        for (older, newer) in [
            ("3.10.8", "3.13.1"),
            ("4.0.2", "4.0.3"),
            ("4.0.9", "4.1.0-rc.1"),
        ] {
            assert!(numbers(older) < numbers(newer), "{older} {newer}");
        }
        assert!(numbers("4.0.3+x") >= CHECKS_COPIES);
        assert!(numbers("unknown") < OLDEST);
    }

    #[test]
    fn where_nothing_is_there_the_prefix_is_named_before_the_way_to_make_it() {
        let (says, advice) = elsewhere("queues", "shop.", "shop.attune.completed", "run it");
        assert_eq!(
            says,
            "all queues (shop.attune.completed); broker.prefix is `shop.`"
        );
        let (prefix, making) = (advice.find("broker.prefix"), advice.find("run it"));
        assert!(prefix.unwrap() < making.unwrap(), "{advice}");
        let (says, _) = elsewhere("queues", "", "attune.completed", "run it");
        assert!(says.ends_with("broker.prefix is empty"), "{says}");
    }

    #[test]
    fn who_reads_nothing_is_named_by_its_role() {
        let mut found = Findings::of(AREA);
        let depth = |consumers| Depth {
            messages: 2,
            consumers,
        };
        let depths = [
            (&Topic::Completed, "attune.completed", depth(0)),
            (&Topic::QueueStats, "attune.queue-stats", depth(0)),
            (&Topic::Enforcements, "attune.enforcements", depth(1)),
        ];
        readers(&depths, &mut found);
        let check = &found.checks[0];
        assert_eq!(check.state, State::Problem);
        assert!(
            check
                .says
                .contains("attune.completed, attune.queue-stats, where 4"),
            "{}",
            check.says
        );
        assert!(
            check
                .advice
                .as_ref()
                .unwrap()
                .ends_with("completion-listener, stats")
        );
    }
}
