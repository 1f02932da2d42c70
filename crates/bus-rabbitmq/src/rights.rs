//! Who may do what on the broker: the permissions of one user for each part of a system, derived from the
//! topology itself. A topic that has no row here does not compile.

use attune_bus::{BusError, Topic};
use attune_core::policy::EventKind;
use attune_core::{OwnerId, PartitionId, WorkerId};
use uuid::Uuid;

use crate::cause::Cause;
use crate::options::RabbitOptions;
use crate::topology::{Topology, exchanges};

/// Whose permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Account {
    /// Declares everything, with `attune topology apply`.
    Deploy,
    /// The executors.
    Executor,
    /// The completion listeners.
    Listener,
    /// The keepers of statistics and dead letters.
    Stats,
    /// The API.
    Api,
    /// The workers of this pool.
    Worker(String),
    /// A client of this name that publishes rule firings.
    Client(String),
}

impl Account {
    /// The name of its user.
    #[must_use]
    pub fn user(&self) -> String {
        match self {
            Self::Deploy => "attune-deploy".to_owned(),
            Self::Executor => "attune-executor".to_owned(),
            Self::Listener => "attune-listener".to_owned(),
            Self::Stats => "attune-stats".to_owned(),
            Self::Api => "attune-api".to_owned(),
            Self::Worker(pool) => format!("attune-worker-{pool}"),
            Self::Client(name) => format!("client-{name}"),
        }
    }

    fn part(&self) -> Option<Part> {
        Some(match self {
            Self::Deploy => return None,
            Self::Executor => Part::Executor,
            Self::Listener => Part::Listener,
            Self::Stats => Part::Stats,
            Self::Api => Part::Api,
            Self::Worker(_) => Part::Worker,
            Self::Client(_) => Part::Client,
        })
    }
}

/// What a user may do in the virtual host: regular expressions, as the broker takes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    /// Whose.
    pub user: String,
    /// What it may declare and delete.
    pub configure: String,
    /// To what it may publish or bind.
    pub write: String,
    /// From what it may consume or be bound to.
    pub read: String,
    /// By which keys it may publish and bind, of each exchange whose keys count.
    pub keys: Vec<KeyPermission>,
}

/// By which keys of an exchange a user may publish and bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPermission {
    /// The exchange.
    pub exchange: String,
    /// To publish.
    pub write: String,
    /// To bind.
    pub read: String,
}

/// A part of a system, all of whose processes have one user, or one for each pool or name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Executor,
    Listener,
    Stats,
    Api,
    Worker,
    Client,
}

/// Who publishes to a topic, and who receives from it. What somebody reads it may have to put back to the end
/// of its queue, and the API puts dead letters back where they came from.
fn uses(topic: &Topic) -> (&'static [Part], &'static [Part]) {
    use Part::{Api, Client, Executor, Listener, Stats, Worker};
    match topic {
        Topic::Enforcements => (&[Client, Api, Executor], &[Executor]),
        Topic::Commands(_) | Topic::Calls(_) => (&[Api, Executor], &[Executor]),
        Topic::Control(_) => (&[Listener, Api, Executor], &[Executor]),
        Topic::ControlKept(_) => (&[Listener, Executor], &[Executor]),
        Topic::Completed => (&[Worker, Api, Listener], &[Listener]),
        Topic::CompletedKept => (&[Worker, Listener], &[Listener]),
        Topic::HandedOver => (&[Executor], &[Executor]),
        Topic::Hello => (&[Worker, Api], &[Executor]),
        Topic::Link(..) => (&[Executor], &[Worker, Api]),
        Topic::Reports(_) => (&[Worker, Api], &[Executor]),
        Topic::Event(_) => (&[Executor], &[]),
        Topic::Events => (&[], &[Api]),
        Topic::QueueStats => (&[Executor, Stats], &[Stats]),
        Topic::Reply(_) => (&[Executor], &[Api, Client]),
        Topic::DeadLetters => (&[Executor, Listener, Stats], &[Stats]),
    }
}

/// A partition and an id that stand for any.
const ANY_PARTITION: PartitionId = PartitionId(999);
const ANY_ID: Uuid = Uuid::nil();

/// One topic of each kind, for the user of an account.
fn every(account: &Account) -> Vec<Topic> {
    let pool = match account {
        Account::Worker(pool) => pool.as_str(),
        _ => ANY_POOL,
    };
    let address = match account {
        Account::Client(name) => format!("attune.reply.{name}.{ANY_ID}"),
        _ => format!("attune.reply.{ANY_ID}"),
    };
    vec![
        Topic::Enforcements,
        Topic::Commands(ANY_PARTITION),
        Topic::Calls(ANY_PARTITION),
        Topic::Control(ANY_PARTITION),
        Topic::ControlKept(ANY_PARTITION),
        Topic::Completed,
        Topic::CompletedKept,
        Topic::HandedOver,
        Topic::Hello,
        Topic::link(pool, WorkerId(ANY_ID)),
        Topic::Reports(OwnerId(ANY_ID)),
        Topic::Event(EventKind::Accepted),
        Topic::Events,
        Topic::QueueStats,
        Topic::Reply(address),
        Topic::DeadLetters,
    ]
}

/// No pool has such a name.
const ANY_POOL: &str = "ANY";

/// A name with what may stand for any in it, as a regular expression. Where a queue has a new name each time,
/// it ends anyhow.
fn pattern(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if !(letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-')) {
            text.push('\\');
        }
        text.push(letter);
    }
    let id = "[0-9a-f-]{36}";
    // With what stands around it: a pool or a prefix may have this number in its name.
    text.replace(r"partition\.999\.", r"partition\.[0-9]+\.")
        .replace(&ANY_ID.to_string(), id)
        .replace(ANY_POOL, "[a-z0-9_-]+")
}

/// One regular expression for all of these.
fn any_of(mut patterns: Vec<String>) -> String {
    patterns.sort();
    patterns.dedup();
    match patterns.as_slice() {
        [] => "^$".to_owned(),
        [one] => format!("^{one}$"),
        many => format!("^({})$", many.join("|")),
    }
}

/// What one user needs, gathered from the topics.
#[derive(Default)]
struct Needs {
    configure: Vec<String>,
    write: Vec<String>,
    read: Vec<String>,
    /// Exchange and key, to publish and to bind.
    publishes: Vec<(String, String)>,
    binds: Vec<(String, String)>,
}

impl RabbitOptions {
    /// What the user of an account needs on the broker, and nothing else.
    ///
    /// # Errors
    /// [`BusError::Refused`] when a name is too long for the protocol.
    pub fn permission(&self, account: &Account) -> Result<Permission, BusError> {
        let topology = Topology::of(self);
        let mut needs = Needs::default();
        match account.part() {
            Some(part) => {
                for topic in every(account) {
                    needs.add(&topology, &topic, part)?;
                }
            }
            None => {
                let own = format!("{}.*", pattern(&format!("{}attune.", self.prefix)));
                for list in [&mut needs.configure, &mut needs.write, &mut needs.read] {
                    list.push(own.clone());
                }
            }
        }
        let keys = exchanges(&self.prefix)
            .filter(|(_, has_keys)| *has_keys)
            .map(|(exchange, _)| {
                let of = |list: &[(String, String)]| match account {
                    Account::Deploy => "^.*$".to_owned(),
                    _ => {
                        let of_it = list.iter().filter(|(of, _)| *of == exchange);
                        any_of(of_it.map(|(_, key)| key.clone()).collect())
                    }
                };
                KeyPermission {
                    write: of(&needs.publishes),
                    read: of(&needs.binds),
                    exchange,
                }
            });
        let keys = keys.collect();
        Ok(Permission {
            user: account.user(),
            configure: any_of(needs.configure),
            write: any_of(needs.write),
            read: any_of(needs.read),
            keys,
        })
    }
}

impl Needs {
    fn add(&mut self, topology: &Topology, topic: &Topic, part: Part) -> Result<(), Cause> {
        let (writers, readers) = uses(topic);
        let (exchange, key) = topology.route(topic)?;
        let (exchange, key) = (exchange.to_string(), pattern(key.as_str()));
        if writers.contains(&part) {
            self.write.push(match exchange.as_str() {
                "" => "amq\\.default".to_owned(),
                exchange => pattern(exchange),
            });
            // Of answers the key is the queue of whoever asked.
            let key = match topic {
                Topic::Event(_) => "event\\.[a-z_]+".to_owned(),
                _ => key.clone(),
            };
            self.publishes.push((exchange.clone(), key));
        }
        if readers.contains(&part) {
            let queue = topology.queue_name(topic);
            if topic.is_kept() {
                self.read.push(pattern(&queue));
                return Ok(());
            }
            // A name of its own each time, but for answers, whose address is said before.
            let queue = match topic {
                Topic::Reply(_) => pattern(&queue),
                _ => {
                    let stem = queue.len().saturating_sub(ANY_ID.to_string().len());
                    format!("{}[0-9a-f-]{{36}}", pattern(&queue[..stem]))
                }
            };
            self.configure.push(queue.clone());
            self.read.push(queue.clone());
            if !exchange.is_empty() {
                self.write.push(queue);
                self.read.push(pattern(&exchange));
                self.binds.push((exchange, key));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "rights_tests.rs"]
mod tests;
