//! The versions of the policy set under which owners decided.
//!
//! *I12.* In a partition the version never falls, over owners too. From the moment that the API has
//! said that all partitions decide under a version, whoever takes one over decides under no older one.
//!
//! An owner writes the version down with the decisions of a round, in their order: all that follow were
//! made under it. What is said in a version is known where the API recorded every change up to it since the one
//! that is asked about; what of that owners did is judged by `documents`.

use std::collections::{BTreeMap, HashMap};

use attune_core::{ActionRef, Epoch, PartitionId, PolicyTarget};
use attune_record::{PolicyChange, Record};
use serde_json::Value;
use uuid::Uuid;

use super::facts::Facts;
use super::{Judged, Promise, Violation, documents, violation};

/// A version under which an owner decides from then on.
#[derive(Debug, Clone, Copy)]
struct InForce {
    epoch: Epoch,
    set_version: i64,
    record: u32,
}

/// A version that was in force in all partitions.
#[derive(Debug, Clone, Copy)]
struct Told {
    set_version: i64,
    t_ns: i64,
    record: u32,
}

/// What was recorded of policy documents.
#[derive(Debug, Default)]
pub(super) struct Policies {
    in_force: BTreeMap<PartitionId, Vec<InForce>>,
    /// When each partition was taken.
    acquired: HashMap<(PartitionId, Epoch), i64>,
    asked: HashMap<Uuid, Vec<(PolicyTarget, Said)>>,
    /// With which changes each version was told.
    stored: BTreeMap<i64, Vec<Uuid>>,
    told: Vec<Told>,
}

/// What a change says of a target.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Said {
    /// It is not recorded.
    Unknown,
    /// Nothing: there is no document.
    Nothing,
    /// This, as it is stored.
    This(Value),
}

impl Said {
    /// Whether it may say something at a path.
    fn may_say(&self, pointer: &str) -> bool {
        match self {
            Self::Unknown => true,
            Self::Nothing => false,
            Self::This(value) => value.pointer(pointer).is_some_and(|it| !it.is_null()),
        }
    }
}

impl Policies {
    /// Adds a record; those of other kinds change nothing.
    pub(super) fn add(&mut self, number: u32, record: &Record) {
        match record {
            Record::Policy(of) => {
                let versions = self.in_force.entry(of.partition).or_default();
                versions.push(InForce {
                    epoch: of.epoch,
                    set_version: of.set_version,
                    record: number,
                });
            }
            Record::Acquired {
                partition,
                epoch,
                t_ns,
                ..
            } => {
                self.acquired.entry((*partition, *epoch)).or_insert(*t_ns);
            }
            Record::Policies(PolicyChange::Asked {
                policy_id,
                targets,
                says,
                ..
            }) => {
                let targets = targets.iter().enumerate().filter_map(|(at, target)| {
                    let (scope, name) = target.split_once(' ').unwrap_or((target, ""));
                    let said = match says.get(at) {
                        None => Said::Unknown,
                        Some(None) => Said::Nothing,
                        Some(Some(value)) => Said::This(value.clone()),
                    };
                    Some((PolicyTarget::of(scope.parse().ok()?, name).ok()?, said))
                });
                self.asked.insert(*policy_id, targets.collect());
            }
            Record::Policies(PolicyChange::Told {
                policy_id,
                set_version,
                in_force,
                t_ns,
            }) => {
                let stored = self.stored.entry(*set_version).or_default();
                stored.push(*policy_id);
                self.told.extend(in_force.then_some(Told {
                    set_version: *set_version,
                    t_ns: *t_ns,
                    record: number,
                }));
            }
            _ => {}
        }
    }

    /// Whether an action may have inherited an order or priorities at some time. What was said of an action
    /// itself was asked for as a change of it.
    pub(super) fn may_complete(&self, action_ref: &ActionRef) -> bool {
        let mut said = self.asked.values().flatten();
        said.any(|(target, said)| {
            let inherits = matches!(target, PolicyTarget::Global | PolicyTarget::Pack(_));
            inherits
                && target.covers(action_ref)
                && (said.may_say("/action_defaults/priority")
                    || said.may_say("/action_defaults/queue/ordering"))
        })
    }

    /// Whether the priorities of a user may have been lowered at some time; of somebody, where it is not
    /// known for whom something was asked for.
    pub(super) fn may_lower(&self, user: Option<&str>) -> bool {
        let mut said = self.asked.values().flatten();
        said.any(|(target, said)| {
            let PolicyTarget::User(name) = target else {
                return false;
            };
            let is_meant = match user {
                None => true,
                Some("") => false,
                Some(user) => name == user || name == PolicyTarget::EVERY_USER,
            };
            is_meant && said.may_say("/policy/priority/max")
        })
    }

    /// Whether any document was recorded with what it says.
    pub(super) fn are_known(&self) -> bool {
        let mut said = self.asked.values().flatten();
        said.any(|(_, said)| *said != Said::Unknown)
    }

    /// What is said of a target in a version of the set: nothing known where a version between the newest
    /// change of it that was told and this one was not told, since that may have changed it.
    pub(super) fn said(&self, target: &PolicyTarget, version: i64) -> Said {
        let mut expected = version;
        for (stored, changes) in self.stored.range(..=version).rev() {
            if *stored != expected {
                return Said::Unknown;
            }
            let mut changes = changes.iter().filter_map(|id| self.asked.get(id)).flatten();
            if let Some((_, said)) = changes.find(|(of, _)| of == target) {
                return said.clone();
            }
            // One that was told of what was so already tells nothing of what has made it so.
            if changes_nothing(self, *stored) {
                return Said::Unknown;
            }
            expected -= 1;
        }
        match expected {
            0 => Said::Nothing,
            _ => Said::Unknown,
        }
    }

    /// The version of the set under which an owner decided at a record, and whether it is known.
    pub(super) fn version_at(&self, partition: PartitionId, epoch: Epoch, record: u32) -> i64 {
        let versions = self.in_force.get(&partition).into_iter().flatten();
        let before = versions.filter(|it| it.epoch == epoch && it.record < record);
        before
            .max_by_key(|it| it.record)
            .map_or(0, |it| it.set_version)
    }
}

/// Whether none of the changes that were told with a version is recorded.
fn changes_nothing(policies: &Policies, version: i64) -> bool {
    let told = policies.stored.get(&version).into_iter().flatten();
    !told.into_iter().any(|id| policies.asked.contains_key(id))
}

pub(super) fn judge(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let policies = &facts.policies;
    documents::judge(facts, judged, broken);
    for (partition, versions) in &policies.in_force {
        let mut versions = versions.clone();
        versions.sort_by_key(|it| (it.epoch, it.record));
        judged.policies += versions.len() as u64;
        let falls = versions
            .windows(2)
            .find(|pair| pair[1].set_version < pair[0].set_version);
        if let Some([before, after]) = falls {
            let what = format!(
                "partition {partition} decided under version {} of the policy set, and then under {}",
                before.set_version, after.set_version
            );
            broken.push(violation(Promise::I12, what, [before.record, after.record]));
        }
        let wrong = versions.iter().find_map(|it| {
            let began = policies.acquired.get(&(*partition, it.epoch))?;
            let told = policies.told.iter();
            let told = told.filter(|told| told.t_ns < *began && told.set_version > it.set_version);
            Some((it, told.max_by_key(|told| told.set_version)?))
        });
        if let Some((it, told)) = wrong {
            let what = format!(
                "partition {partition} was taken over when version {} of the policy set was in force \
                 everywhere, and decided under {}",
                told.set_version, it.set_version
            );
            broken.push(violation(Promise::I12, what, [told.record, it.record]));
        }
    }
}
