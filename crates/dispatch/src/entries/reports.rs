//! What a worker reports of what it holds, and when.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{Bug, OwnerId};

use super::{Entries, State};
use crate::section::{Granted, Millis, Report, Returned, Started};

/// A run that has lasted so long is told: shorter ones cost no message.
const TOLD_AFTER: Millis = 100;
/// What was given back is reported this often until it is settled.
const RETURNS_EVERY: Millis = 2_000;
/// A missing section is asked for this often.
const RESYNC_EVERY: Millis = 500;
/// How often an owner is told again how much the worker has of others.
const ELSEWHERE_AGAIN: Millis = 1_000;
/// How often an owner is told at most that the worker has more or less of others.
const ELSEWHERE_EVERY: Millis = 20;

impl<G: Granted> Entries<G> {
    /// Something that was on its way to this life may have been lost, because its link is new.
    pub fn link_is_new(&mut self) {
        for stream in self.streams.values_mut() {
            stream.missing.get_or_insert(None);
        }
        for said in self.said.values_mut() {
            said.returns_at = None;
        }
    }

    /// What is to be reported now.
    pub fn reports(&mut self, now: Millis) -> Vec<Report> {
        let mut reports: BTreeMap<OwnerId, Report> = BTreeMap::new();
        let total: u32 = self.unended.values().sum();
        let mut own: BTreeMap<OwnerId, u32> = BTreeMap::new();
        for (partition, stream) in &self.streams {
            let many = self.unended.get(partition).copied().unwrap_or(0);
            *own.entry(stream.owner).or_default() += many;
        }
        self.said.retain(|owner, _| own.contains_key(owner));
        let give_back = self.owners_of_returned();
        // Who is told what is given back is told all of it, so it is settled before the entries are looked at.
        let mut told_returns: BTreeSet<OwnerId> = BTreeSet::new();
        for (owner, own) in &own {
            let elsewhere = total - own;
            let said = self.said.entry(*owner).or_default();
            let since = now - said.elsewhere_at;
            // An owner forgets what it was told long ago, as the word that it is over may be lost.
            let is_new = elsewhere != said.elsewhere && since >= ELSEWHERE_EVERY
                || elsewhere != 0 && since >= ELSEWHERE_AGAIN;
            let due = said.returns_at.is_none_or(|at| now - at >= RETURNS_EVERY);
            let due = due && !Bug::ReturnOnce.is_planted();
            let returns = give_back.contains(owner) && (said.has_more || due);
            // It may be settled already.
            said.has_more = false;
            if is_new || returns {
                reports.insert(*owner, Report::new(*owner, elsewhere));
            }
            if returns {
                said.returns_at = Some(now);
                told_returns.insert(*owner);
            }
        }
        let elsewhere = |owner: &OwnerId| total - own.get(owner).copied().unwrap_or(0);
        for (partition, stream) in &mut self.streams {
            if let Some(asked) = &mut stream.missing
                && asked.is_none_or(|at| now - at >= RESYNC_EVERY)
            {
                *asked = Some(now);
                let report = reports.entry(stream.owner);
                let report =
                    report.or_insert_with(|| Report::new(stream.owner, elsewhere(&stream.owner)));
                report.resync.push(*partition);
            }
        }
        for (key, entry) in &mut self.entries {
            let Some(stream) = self.streams.get(&key.0.partition()) else {
                continue;
            };
            match &mut entry.state {
                State::Running { since, told } if !*told && now - *since >= TOLD_AFTER => {
                    *told = true;
                    let report = reports.entry(stream.owner);
                    let report = report
                        .or_insert_with(|| Report::new(stream.owner, elsewhere(&stream.owner)));
                    report.started.push(Started {
                        key: *key,
                        age: now - *since,
                    });
                }
                State::Returned { why } => {
                    if told_returns.contains(&stream.owner)
                        && let Some(report) = reports.get_mut(&stream.owner)
                    {
                        let why = why.clone();
                        report.returned.push(Returned { key: *key, why });
                    }
                }
                _ => {}
            }
        }
        for report in reports.values_mut() {
            report
                .returned
                .sort_unstable_by_key(|returned| returned.key);
            report.started.sort_unstable_by_key(|started| started.key);
            let said = self.said.entry(report.owner).or_default();
            (said.elsewhere, said.elsewhere_at) = (report.elsewhere, now);
        }
        reports.into_values().collect()
    }

    /// To whom something is on its way back.
    fn owners_of_returned(&self) -> BTreeSet<OwnerId> {
        if self.returned == 0 {
            return BTreeSet::new();
        }
        let all = self.entries.iter();
        let returned = all.filter(|(_, entry)| matches!(entry.state, State::Returned { .. }));
        returned
            .filter_map(|(key, _)| self.streams.get(&key.0.partition()))
            .map(|stream| stream.owner)
            .collect()
    }

    /// Whether something is to be reported at once.
    pub fn has_news(&self) -> bool {
        self.said.values().any(|said| said.has_more)
            || self
                .streams
                .values()
                .any(|stream| stream.missing == Some(None))
    }

    /// Whether time alone may bring something to report, or to give back. If not, nothing is due before the
    /// next section or the next end.
    pub fn awaits(&self) -> bool {
        self.waiting + self.running + self.returned > 0
            || self.said.values().any(|said| said.elsewhere != 0)
            || self.streams.values().any(|stream| stream.missing.is_some())
    }
}
