//! Who disturbs: a table of faults, and lanes that pick from it by a seed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::time::Instant;

use super::fleet::Fleet;
use super::http::Shared;
use super::lasting_faults::Clocks;
use super::notes::Notes;
use super::servers::Servers;
use super::stranger::Stranger;
use super::{
    Say, daemon_faults, document_faults, lasting_faults, message_faults, room_faults, server_faults,
};

/// How long healing is tried again, when somebody disturbs just then.
pub(crate) const INSIST: Duration = Duration::from_secs(60);

/// What a fault hits. Faults of one lane come one after the other, those of several at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// PostgreSQL or RabbitMQ.
    Servers,
    /// Daemons and their ways to the servers.
    Daemons,
    /// Messages, requests and the room that there is for them.
    Messages,
    /// The clocks of processes.
    Clocks,
}

impl Lane {
    /// How long it rests between two faults, in milliseconds.
    fn rest(self) -> std::ops::Range<u64> {
        match self {
            Self::Servers => 5_000..12_000,
            Self::Daemons | Self::Messages => 500..4_000,
            Self::Clocks => 3_000..10_000,
        }
    }
}

/// Carries a fault out and heals it. `false` when there was nothing to hit just then.
type Work = for<'a> fn(&'a Rig, &'a mut StdRng, &'a Fault) -> BoxFuture<'a, anyhow::Result<bool>>;

/// A kind of fault.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Its name for `--faults`.
    pub(crate) name: &'static str,
    /// What is done.
    pub(crate) how: &'static str,
    /// How it is healed.
    pub(crate) heal: &'static str,
    /// With what it does not happen at once.
    pub(crate) lane: Lane,
    /// How often it is picked, next to the others.
    pub(crate) weight: u32,
    /// What does it.
    pub(crate) work: Work,
}

/// Every kind of fault.
pub(crate) fn faults() -> impl Iterator<Item = &'static Fault> {
    [
        daemon_faults::FAULTS,
        document_faults::FAULTS,
        lasting_faults::FAULTS,
        message_faults::FAULTS,
        room_faults::FAULTS,
        server_faults::FAULTS,
    ]
    .into_iter()
    .flatten()
}

/// Everything that can be disturbed.
pub(crate) struct Rig {
    pub(crate) servers: Servers,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) stranger: Stranger,
    pub(crate) say: Say,
    pub(crate) notes: Notes,
    /// Clocks that can be set, when some fault shall set them.
    pub(crate) clocks: Option<Clocks>,
    /// When a fault of the servers last began or ended, and whether one is under way.
    pub(crate) servers_disturbed: Mutex<(Option<Instant>, bool)>,
    /// How often each kind of fault was begun.
    pub(crate) counts: Mutex<BTreeMap<&'static str, u64>>,
    /// The highest limit that each action ever had; nothing is no limit.
    pub(crate) limits: Mutex<BTreeMap<String, Option<u32>>>,
}

/// A fault that has begun.
pub(crate) struct Begun<'a> {
    rig: &'a Rig,
    lane: Lane,
    name: &'static str,
    target: String,
    since: Instant,
}

impl Rig {
    /// Notes that a fault begins.
    pub(crate) fn begin(&self, fault: &Fault, target: &str) -> anyhow::Result<Begun<'_>> {
        let record = json!({"name": fault.name, "target": target, "phase": "begin"});
        self.notes.add("fault", record)?;
        self.count(fault.name);
        self.disturb_servers(fault.lane, true);
        Ok(Begun {
            rig: self,
            lane: fault.lane,
            name: fault.name,
            target: target.to_owned(),
            since: Instant::now(),
        })
    }

    /// Counts a fault.
    pub(crate) fn count(&self, name: &'static str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(name).or_default() += 1;
    }

    /// How often it was counted.
    pub(crate) fn counted(&self, name: &'static str) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(name).copied().unwrap_or(0)
    }

    fn disturb_servers(&self, lane: Lane, is_under_way: bool) {
        if lane == Lane::Servers {
            let disturbed = self.servers_disturbed.lock();
            let mut disturbed = disturbed.unwrap_or_else(PoisonError::into_inner);
            *disturbed = (Some(Instant::now()), is_under_way);
        }
    }

    /// Whether the servers have been left alone for so long.
    pub(crate) fn servers_are_quiet_for(&self, time: Duration) -> bool {
        let disturbed = self.servers_disturbed.lock();
        let (last, is_under_way) = *disturbed.unwrap_or_else(PoisonError::into_inner);
        !is_under_way && last.is_none_or(|last| last.elapsed() > time)
    }

    /// How many faults there were.
    pub(crate) fn fault_count(&self) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.values().sum()
    }

    /// Disturbs in one lane until the deadline.
    ///
    /// # Errors
    /// When the rig itself fails, for example when a server does not start again.
    pub(crate) async fn disturb(
        &self,
        lane: Lane,
        chosen: &[&'static Fault],
        seed: u64,
        deadline: Instant,
    ) -> anyhow::Result<()> {
        let mut random = StdRng::seed_from_u64(seed);
        let table: Vec<_> = chosen.iter().filter(|fault| fault.lane == lane).collect();
        if table.is_empty() {
            return Ok(());
        }
        let total: u32 = table.iter().map(|fault| fault.weight).sum();
        while Instant::now() < deadline {
            let mut left = random.random_range(0..total);
            let fault = table.iter().find(|fault| {
                let hit = left < fault.weight;
                left = left.saturating_sub(fault.weight);
                hit
            });
            let fault = fault.context("the weights add up")?;
            let work = (fault.work)(self, &mut random, fault).await;
            let done = work.with_context(|| format!("the fault {}", fault.name))?;
            let rest = if done {
                random.random_range(lane.rest())
            } else {
                100
            };
            tokio::time::sleep(Duration::from_millis(rest)).await;
        }
        Ok(())
    }
}

impl Begun<'_> {
    /// Notes that the fault is healed.
    pub(crate) fn end(self) -> anyhow::Result<bool> {
        let record = json!({"name": self.name, "target": self.target, "phase": "end"});
        self.rig.notes.add("fault", record)?;
        self.rig.disturb_servers(self.lane, false);
        let seconds = self.since.elapsed().as_secs_f64();
        let (name, target) = (self.name, &self.target);
        self.rig.say.line(&format!(
            "{name:<18} {target:<34} healed after {seconds:>4.1} s"
        ));
        Ok(true)
    }
}

/// Lets a random time between so many milliseconds pass.
pub(crate) async fn pass(random: &mut StdRng, millis: std::ops::Range<u64>) {
    tokio::time::sleep(Duration::from_millis(random.random_range(millis))).await;
}
