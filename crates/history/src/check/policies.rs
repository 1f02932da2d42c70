//! The versions of the policy set under which owners decided.
//!
//! *I12.* In a partition the version never falls, over owners too. From the moment that the API has
//! said that all partitions decide under a version, whoever takes one over decides under no older one.
//!
//! An owner writes the version down with the decisions of a round, in their order: all that follow were
//! made under it.

use std::collections::{BTreeMap, HashMap};

use attune_core::{ActionRef, Epoch, PartitionId, PolicyTarget};
use attune_record::{PolicyChange, Record};
use uuid::Uuid;

use super::facts::Facts;
use super::{Judged, Promise, Violation, violation};

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
    asked: HashMap<Uuid, Vec<PolicyTarget>>,
    told: Vec<Told>,
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
                policy_id, targets, ..
            }) => {
                let targets = targets.iter().filter_map(|target| {
                    let (scope, name) = target.split_once(' ').unwrap_or((target, ""));
                    PolicyTarget::of(scope.parse().ok()?, name).ok()
                });
                self.asked.insert(*policy_id, targets.collect());
            }
            Record::Policies(PolicyChange::Told {
                set_version,
                in_force: true,
                t_ns,
                ..
            }) => self.told.push(Told {
                set_version: *set_version,
                t_ns: *t_ns,
                record: number,
            }),
            _ => {}
        }
    }

    /// Whether an action may have inherited something at some time.
    pub(super) fn may_complete(&self, action_ref: &ActionRef) -> bool {
        let mut targets = self.asked.values().flatten();
        targets.any(|target| target.covers(action_ref))
    }

    /// Whether something was said of users at some time.
    pub(super) fn says_of_users(&self) -> bool {
        let mut targets = self.asked.values().flatten();
        targets.any(|target| matches!(target, PolicyTarget::User(_)))
    }
}

pub(super) fn judge(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let policies = &facts.policies;
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
