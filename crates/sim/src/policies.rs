//! Policy documents, told once more in the plainest words: what each version says, under which one each
//! partition says to decide, and whether it does. What an action says itself does not change here.

use std::collections::BTreeMap;

use attune_core::policy::{ActionDefaults, Priorities, QueueBounds, UserPolicy};
use attune_core::{ActionId, Epoch, PartitionId, PolicySet, Priority, Promise, RequestId, Status};
use attune_executor::Fact;
use attune_executor::policy::QueueLimits;

use crate::bus::Body;
use crate::flow::BOUND;
use crate::groups::{Ranks, Words};
use crate::oracle::{Rule, Violation};
use crate::owner::MAX_QUEUE_LENGTH;
use crate::plan::{ActionShape, Time};
use crate::rng::Rng;
use crate::world::World;

/// What actions inherit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Defaults {
    /// How many may wait.
    pub max_length: Option<u32>,
    /// The priority of those that ask for none.
    pub default: Option<Priority>,
    /// The highest priority.
    pub max: Option<Priority>,
}

/// All documents of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Documents {
    /// Of all actions.
    pub global: Option<Defaults>,
    /// Of the one pack that there is.
    pub pack: Option<Defaults>,
    /// The highest priority of the first user, and of all others.
    pub users: [Option<Priority>; 2],
}

impl Documents {
    /// Draws them.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let some = |rng: &mut Rng| {
            rng.chance(600).then(|| Defaults {
                max_length: rng.pick(&[None, Some(2), Some(4), Some(9)]),
                default: rng.chance(400).then(|| rng.pick(&Priority::ALL)),
                max: rng.chance(300).then(|| rng.pick(&Priority::ALL)),
            })
        };
        Self {
            global: some(rng),
            pack: some(rng),
            users: [(); 2].map(|()| rng.chance(300).then(|| rng.pick(&Priority::ALL))),
        }
    }

    /// As owners read them.
    fn set(&self, version: i64) -> PolicySet {
        let defaults = |of: Defaults| ActionDefaults {
            queue: QueueBounds {
                max_length: of.max_length,
                ..QueueBounds::default()
            },
            priority: Priorities {
                default: of.default,
                max: of.max,
                ..Priorities::default()
            },
            ..ActionDefaults::default()
        };
        let names = ["user1", "*"].into_iter().zip(self.users);
        let users = names.filter_map(|(name, max)| {
            let policy = UserPolicy {
                tier: None,
                max_priority: Some(max?),
            };
            Some((name.to_owned(), policy))
        });
        PolicySet {
            version,
            global: self.global.map(defaults),
            packs: self
                .pack
                .map(|pack| ("sim".to_owned(), defaults(pack)))
                .into_iter()
                .collect(),
            users: users.collect(),
        }
    }

    fn max_length(&self, shape: &ActionShape) -> u32 {
        let said = [self.pack, self.global].into_iter().flatten();
        let inherited = said.filter_map(|it| it.max_length).next();
        shape.max_length.or(inherited).unwrap_or(MAX_QUEUE_LENGTH)
    }

    fn priority(&self, ranks: Ranks, asked: Option<Priority>, words: Words) -> Priority {
        let mut whole = ranks;
        for layer in [self.pack, self.global].into_iter().flatten() {
            whole.default = whole.default.or(layer.default);
            whole.max = whole.max.or(layer.max);
        }
        let by_action = whole.of(asked, words);
        let of_user = match words.user() {
            None => None,
            // A document of one's own takes the place of the one of every user.
            Some(1) if self.users[0].is_some() => self.users[0],
            Some(_) => self.users[1],
        };
        match of_user {
            Some(max) if max.rank() > by_action.rank() => max,
            _ => by_action,
        }
    }
}

/// A version under which a partition decides.
type Version = i64;

/// What is known of documents.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    sets: BTreeMap<Version, Documents>,
    /// Under which version each owner says to decide.
    goes_by: BTreeMap<(PartitionId, Epoch), Version>,
    /// What operators were told is in force.
    told: BTreeMap<PartitionId, Version>,
    /// Which action was asked for, and with which priority.
    asked: BTreeMap<RequestId, (usize, Option<Priority>)>,
    /// Since when a partition has not written down the version that is stored.
    behind: BTreeMap<PartitionId, Time>,
}

impl Policies {
    /// Somebody asks for an execution of an action.
    pub(crate) fn submitted(&mut self, request: RequestId, action: usize, asked: Option<Priority>) {
        self.asked.entry(request).or_insert((action, asked));
    }

    /// A partition has said that it goes by this version.
    pub(crate) fn told(&mut self, version: Version, partition: PartitionId) {
        let told = self.told.entry(partition).or_default();
        *told = version.max(*told);
    }

    /// A new owner has loaded this.
    pub(crate) fn loaded(&mut self, key: (PartitionId, Epoch), facts: &[Fact]) {
        for fact in facts {
            if let Fact::Policies { set_version } = fact {
                self.goes_by.insert(key, *set_version);
            }
        }
    }

    /// What an owner has decided in one round, and the bounds of its queues afterwards.
    pub(crate) fn judge(
        &mut self,
        key: (PartitionId, Epoch),
        facts: &[Fact],
        actions: &[ActionShape],
        bounds: &BTreeMap<ActionId, QueueLimits>,
        found: &mut Vec<Violation>,
    ) {
        let accuse = |words: String| Violation::of(Promise::I12, words);
        let partition = key.0;
        let mut version = self.goes_by.get(&key).copied().unwrap_or(0);
        for fact in facts {
            match fact {
                Fact::Policies { set_version } => {
                    if *set_version < version {
                        found.push(accuse(format!(
                            "partition {partition} decided under version {version} of the policy set, and now under {set_version}"
                        )));
                    }
                    version = *set_version;
                }
                Fact::Accepted {
                    execution_id,
                    priority,
                    request_id,
                    status,
                    ..
                } if *status != Status::Rejected && !self.sets.is_empty() => {
                    let set = self.sets.get(&version).copied().unwrap_or_default();
                    let Some((action, asked)) = self.asked.get(request_id) else {
                        continue;
                    };
                    let words = Words::of(*request_id);
                    let due = set.priority(actions[*action].ranks, *asked, words);
                    if due != *priority {
                        found.push(accuse(format!(
                            "{execution_id} waits as {priority}, and under version {version} of the policy set as {due}"
                        )));
                    }
                }
                _ => {}
            }
        }
        self.goes_by.insert(key, version);
        let told = self.told.get(&partition).copied().unwrap_or(0);
        if version < told {
            found.push(accuse(format!(
                "partition {partition} decides under version {version} of the policy set, and operators were told that {told} is in force"
            )));
        }
        if self.sets.is_empty() {
            return;
        }
        let set = self.sets.get(&version).copied().unwrap_or_default();
        for (id, limits) in bounds {
            let number = usize::try_from(id.0 - 1).unwrap_or(0);
            let due = actions.get(number).map(|shape| set.max_length(shape));
            if due.is_some_and(|due| due != limits.max_length) {
                found.push(accuse(format!(
                    "{id} takes {} under version {version} of the policy set, which says {due:?}",
                    limits.max_length
                )));
            }
        }
    }
}

impl World {
    /// Whether documents decide about priorities at some time.
    pub(crate) fn has_policies(&self) -> bool {
        self.plan.says_policies
    }

    /// Somebody stores other documents, and tells the owners.
    pub(crate) fn change_policies(&mut self, documents: Documents) {
        let version = self.store.policies.version + 1;
        self.store.policies = documents.set(version);
        self.policies.sets.insert(version, documents);
        *self.seen.faults.entry("policies").or_default() += 1;
        for partition in (0..self.plan.partitions).map(PartitionId) {
            // Some die before they have told all of them.
            if (self.now + i64::from(partition.0)) % 5 == 0 {
                *self.seen.faults.entry("untold-policies").or_default() += 1;
                continue;
            }
            let request_id = RequestId(self.fresh());
            let body = |reply_to| Body::Policies(request_id, reply_to);
            self.add_ask(0, partition, request_id, false, body);
            if let Some(ask) = self.asks.last_mut() {
                ask.policies = Some((version, partition));
            }
        }
    }

    /// A version that is stored is written down soon by each partition that is served, whether or not its
    /// owner was told.
    pub(crate) fn watch_policies(&mut self, partition: PartitionId, excused: bool) {
        let stored = self.store.policies.version;
        let written = self.store.goes_by.get(&partition).copied().unwrap_or(0);
        if excused || written >= stored {
            self.policies.behind.remove(&partition);
            return;
        }
        let since = *self.policies.behind.entry(partition).or_insert(self.now);
        if self.now - since > BOUND {
            let words = format!(
                "partition {partition} goes by version {written} of the policy set, and {stored} is stored since {since} ms"
            );
            self.oracle
                .blame(self.now, Violation::of(Rule::Progress, words));
        }
    }
}
