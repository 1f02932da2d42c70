//! Which life of which worker has room: the owner's view of all pools.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use attune_core::{Bug, PartitionId, WorkerId};

use crate::section::{Key, Millis};

/// A life as the store shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// Which.
    pub worker: WorkerId,
    /// The pool that it serves.
    pub pool: String,
    /// How many executions it runs at once.
    pub slots: u32,
    /// It takes nothing more: it is about to stop.
    pub draining: bool,
}

/// What the lease of a life says of it beside its room, also when it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The pool that it serves.
    pub pool: Arc<str>,
    /// The user of the broker as whom it speaks, if it has said so.
    pub user: Option<Arc<str>>,
}

/// Whether something that is said in the name of a life comes from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// As far as is known.
    Itself,
    /// Another user of the broker has said it.
    Another,
    /// The lease of the life was not read yet.
    NotKnown,
}

/// What is known of a life.
#[derive(Debug)]
struct Known {
    life: Life,
    /// How many grants of other owners it has, as it has said itself.
    elsewhere: u32,
    /// When it said so.
    said_at: Millis,
    /// Until then it is granted nothing, because it has given something back: what is on its way to it shall be
    /// there, and heard of, first. Otherwise grants could go to and fro for ever.
    rests_until: Millis,
    /// Messages to it came back: nobody receives them at the moment.
    is_cut_off: bool,
    /// A message has reached it, or it has said something: before that nobody knows whether it is there.
    is_proven: bool,
    /// Its place among those of its pool that have room, if it has any.
    place: Option<(u64, u64)>,
}

impl Known {
    /// Whether it may be granted something, as far as it is not a matter of its room.
    fn is_open(&self) -> bool {
        let rests = self.rests_until != Millis::MIN;
        !(self.is_cut_off || rests || self.life.draining)
    }
}

/// The lives of one pool.
#[derive(Debug, Default)]
struct Pool {
    lives: usize,
    /// Those with room: the least loaded first, and of equals the one that was chosen longest ago. Those that
    /// may not be there come last.
    open: BTreeSet<((u64, u64), WorkerId)>,
}

/// What a life holds: each grant, and whether it stands ahead of a slot.
#[derive(Debug, Default)]
struct Held {
    keys: HashMap<Key, bool, foldhash::fast::FixedState>,
    slots: usize,
}

/// Which life has room, by what this owner has granted and what the lives say of others. Several owners may
/// overdraw one for a moment: it gives back what it cannot begin, and no promise rests on it.
#[derive(Debug, Default)]
pub struct Roster {
    lives: BTreeMap<WorkerId, Known>,
    /// Of every life whose lease was read, those that are over too.
    accounts: BTreeMap<WorkerId, Account>,
    pools: BTreeMap<String, Pool>,
    /// What each life holds of this owner, known or not.
    holds: HashMap<WorkerId, Held, foldhash::fast::FixedState>,
    turns: u64,
    /// Those that rest, by the end of it.
    rests: BTreeSet<(Millis, WorkerId)>,
    /// The partitions in which somebody stands in line for a pool.
    waited_for: BTreeMap<String, BTreeSet<PartitionId>>,
}

impl Roster {
    /// The lives as they are now: those that are not named are over.
    pub fn set(&mut self, lives: impl IntoIterator<Item = Life>) {
        let mut gone: BTreeSet<WorkerId> = self.lives.keys().copied().collect();
        for life in lives {
            let worker = life.worker;
            gone.remove(&worker);
            match self.lives.get_mut(&worker) {
                Some(known) if known.life == life => continue,
                Some(known) => {
                    let before = std::mem::replace(&mut known.life, life);
                    if before.pool != known.life.pool {
                        // What it holds, and what is known of it, goes with it.
                        let place = known.place.take();
                        self.enter(worker);
                        self.leave(worker, &before.pool, place);
                    }
                }
                None => {
                    let known = Known {
                        life,
                        elsewhere: 0,
                        said_at: 0,
                        rests_until: Millis::MIN,
                        is_cut_off: false,
                        is_proven: false,
                        place: None,
                    };
                    self.lives.insert(worker, known);
                    self.enter(worker);
                }
            }
            self.place(worker);
        }
        for worker in gone {
            self.forget(worker);
        }
    }

    /// What the leases say that were read now, all of them.
    pub fn set_accounts(&mut self, accounts: impl IntoIterator<Item = (WorkerId, Account)>) {
        self.accounts = accounts.into_iter().collect();
    }

    /// The pool of a life, which may be over, if its lease was read.
    pub fn pool_of(&self, worker: WorkerId) -> Option<Arc<str>> {
        match self.accounts.get(&worker) {
            Some(account) => Some(Arc::clone(&account.pool)),
            None => Some(Arc::from(&*self.lives.get(&worker)?.life.pool)),
        }
    }

    /// Whether what a user of the broker says in the name of a life comes from it. Where nobody vouches for
    /// the user, nothing is known against it.
    pub fn speaker(&self, worker: WorkerId, user: Option<&str>) -> Speaker {
        if user.is_none() || Bug::AnyUser.is_planted() {
            return Speaker::Itself;
        }
        match self.accounts.get(&worker) {
            Some(account) if account.user.is_none() || account.user.as_deref() == user => {
                Speaker::Itself
            }
            Some(_) => Speaker::Another,
            None => Speaker::NotKnown,
        }
    }

    /// A life is over.
    pub fn forget(&mut self, worker: WorkerId) {
        let Some(known) = self.lives.remove(&worker) else {
            return;
        };
        self.rests.remove(&(known.rests_until, worker));
        self.leave(worker, &known.life.pool, known.place);
    }

    /// A life that is known serves its pool from now on.
    fn enter(&mut self, worker: WorkerId) {
        if let Some(known) = self.lives.get(&worker) {
            let pool = self.pools.entry(known.life.pool.clone());
            pool.or_default().lives += 1;
        }
    }

    /// A life that had this place in a pool serves it no longer.
    fn leave(&mut self, worker: WorkerId, name: &str, place: Option<(u64, u64)>) {
        if let Some(pool) = self.pools.get_mut(name) {
            pool.lives -= 1;
            if let Some(place) = place {
                pool.open.remove(&(place, worker));
            }
            if pool.lives == 0 {
                self.pools.remove(name);
            }
        }
    }

    /// How many grants of other owners a life has.
    pub fn note_elsewhere(&mut self, now: Millis, worker: WorkerId, elsewhere: u32) {
        if let Some(known) = self.lives.get_mut(&worker) {
            (known.elsewhere, known.said_at) = (elsewhere, now);
            self.place(worker);
        }
    }

    /// Forgets what lives have said of others before a time: who has still something says so every second.
    pub fn forget_elsewhere(&mut self, before: Millis) {
        let lives = self.lives.iter_mut();
        let stale = lives.filter(|(_, known)| known.elsewhere > 0 && known.said_at < before);
        let stale: Vec<WorkerId> = stale
            .map(|(worker, known)| {
                known.elsewhere = 0;
                *worker
            })
            .collect();
        for worker in stale {
            self.place(worker);
        }
    }

    /// A life has given something back: it is granted nothing until then.
    pub fn rest(&mut self, worker: WorkerId, until: Millis) {
        if let Some(known) = self.lives.get_mut(&worker)
            && known.rests_until < until
        {
            self.rests.remove(&(known.rests_until, worker));
            known.rests_until = until;
            self.rests.insert((until, worker));
            self.place(worker);
        }
    }

    /// Those whose rest is over may be chosen again.
    pub fn wake(&mut self, now: Millis) {
        while let Some((until, worker)) = self.rests.first().copied()
            && until <= now
        {
            self.rests.pop_first();
            if let Some(known) = self.lives.get_mut(&worker) {
                known.rests_until = Millis::MIN;
                self.place(worker);
            }
        }
    }

    /// When the next rest is over.
    pub fn wake_at(&self) -> Option<Millis> {
        self.rests.first().map(|(until, _)| *until)
    }

    /// Whether messages reach a life.
    pub fn note_reach(&mut self, worker: WorkerId, reaches: bool) {
        if let Some(known) = self.lives.get_mut(&worker)
            && (known.is_cut_off == reaches || !known.is_proven)
        {
            (known.is_cut_off, known.is_proven) = (!reaches, true);
            self.place(worker);
        }
    }

    /// Whether it must be asked whether messages reach a life: none has, or they came back, and another serves its
    /// pool. One that is alone is granted what there is, for nobody else could have it.
    pub fn is_in_doubt(&self, worker: WorkerId) -> bool {
        self.lives.get(&worker).is_some_and(|known| {
            known.is_cut_off || (!known.is_proven && self.lives_of(&known.life.pool) > 1)
        })
    }

    /// The life that has most room in a pool; `None` where none has any.
    pub fn choose(&self, pool: &str) -> Option<WorkerId> {
        let (_, worker) = self.pools.get(pool)?.open.first()?;
        Some(*worker)
    }

    /// The same, but this one where it serves the pool, runs so many at once and has room.
    pub fn choose_rather(&self, pool: &str, worker: WorkerId, slots: u32) -> Option<WorkerId> {
        let has_room = |known: &Known| {
            let life = &known.life;
            life.pool == pool && life.slots >= slots && known.place.is_some()
        };
        match self.lives.get(&worker).is_some_and(has_room) {
            true => Some(worker),
            false => self.choose(pool),
        }
    }

    /// Whether any life of a pool has room.
    pub fn has_room(&self, pool: &str) -> bool {
        self.choose(pool).is_some()
    }

    /// How many lives serve a pool.
    pub fn lives_of(&self, pool: &str) -> usize {
        self.pools.get(pool).map_or(0, |pool| pool.lives)
    }

    /// Every life that is known.
    pub fn lives(&self) -> impl Iterator<Item = &Life> {
        self.lives.values().map(|known| &known.life)
    }

    /// Whether a life is known.
    pub fn knows(&self, worker: WorkerId) -> bool {
        self.lives.contains_key(&worker)
    }

    /// A life holds a grant: with a slot, or ahead of one, and then it takes no room until it has it.
    pub fn hold(&mut self, worker: WorkerId, key: Key, ahead: bool) {
        let held = self.holds.entry(worker).or_default();
        let took_none = held.keys.insert(key, ahead).unwrap_or(true);
        match (took_none, ahead) {
            (true, false) => held.slots += 1,
            (false, true) => held.slots -= 1,
            _ => return,
        }
        self.place(worker);
    }

    /// Whether a life serves a pool, may be granted something, and runs so many at once.
    pub fn may_lead(&self, worker: WorkerId, pool: &str, slots: u32) -> bool {
        self.lives.get(&worker).is_some_and(|known| {
            let life = &known.life;
            life.pool == pool && life.slots >= slots && known.is_open()
        })
    }

    /// A life holds a grant no longer.
    pub fn free(&mut self, worker: WorkerId, key: Key) {
        let Some(held) = self.holds.get_mut(&worker) else {
            return;
        };
        let Some(ahead) = held.keys.remove(&key) else {
            return;
        };
        if !ahead {
            held.slots -= 1;
        }
        if held.keys.is_empty() {
            self.holds.remove(&worker);
        }
        if !ahead {
            self.place(worker);
        }
    }

    /// Somebody of a partition stands in line for a pool.
    pub fn wait_for(&mut self, pool: &str, partition: PartitionId) {
        match self.waited_for.get_mut(pool) {
            Some(partitions) => {
                partitions.insert(partition);
            }
            None => {
                self.waited_for
                    .insert(pool.to_owned(), BTreeSet::from([partition]));
            }
        }
    }

    /// Nobody of a partition stands in line for a pool any more.
    pub fn wait_no_longer(&mut self, pool: &str, partition: PartitionId) {
        if let Some(partitions) = self.waited_for.get_mut(pool) {
            partitions.remove(&partition);
            if partitions.is_empty() {
                self.waited_for.remove(pool);
            }
        }
    }

    /// Whether somebody stands in line for a pool.
    pub fn is_waited_for(&self, pool: &str) -> bool {
        self.waited_for.contains_key(pool)
    }

    /// The pools that have room and for which somebody stands in line, with the partitions.
    pub fn ready(&self) -> Vec<(String, Vec<PartitionId>)> {
        let waited_for = self.waited_for.iter();
        let ready = waited_for.filter(|(pool, _)| self.has_room(pool));
        ready
            .map(|(pool, partitions)| (pool.clone(), partitions.iter().copied().collect()))
            .collect()
    }

    /// Forgets what was granted and who stands in line of a partition.
    pub fn forget_partition(&mut self, partition: PartitionId) {
        self.waited_for.retain(|_, partitions| {
            partitions.remove(&partition);
            !partitions.is_empty()
        });
        self.retain(|key| key.0.partition() != partition);
    }

    /// Forgets what lives hold of those that are not to be kept.
    fn retain(&mut self, keep: impl Fn(&Key) -> bool) {
        let mut changed = Vec::new();
        self.holds.retain(|worker, held| {
            let before = held.keys.len();
            held.keys.retain(|key, _| keep(key));
            if held.keys.len() != before {
                held.slots = held.keys.values().filter(|ahead| !**ahead).count();
                changed.push(*worker);
            }
            !held.keys.is_empty()
        });
        changed.sort_unstable();
        for worker in changed {
            self.place(worker);
        }
    }

    /// What a life holds, in order.
    pub fn held_by(&self, worker: WorkerId) -> Vec<Key> {
        let held = self.holds.get(&worker).into_iter();
        let mut keys: Vec<Key> = held.flat_map(|held| held.keys.keys()).copied().collect();
        keys.sort_unstable();
        keys
    }

    /// The lives, known or not, that hold something of a partition.
    pub fn holders_of(&self, partition: PartitionId) -> Vec<WorkerId> {
        let of = |key: &Key| key.0.partition() == partition;
        let holders = self.holds.iter();
        let holders = holders.filter(|(_, held)| held.keys.keys().any(of));
        let mut holders: Vec<WorkerId> = holders.map(|(worker, _)| *worker).collect();
        holders.sort_unstable();
        holders
    }

    /// How many slots a life holds.
    pub fn held(&self, worker: WorkerId) -> usize {
        self.holds.get(&worker).map_or(0, |held| held.slots)
    }

    /// Puts a life where it belongs among those with room.
    fn place(&mut self, worker: WorkerId) {
        let held = self.held(worker) as u64;
        let Some(known) = self.lives.get_mut(&worker) else {
            return;
        };
        let Some(pool) = self.pools.get_mut(&known.life.pool) else {
            return;
        };
        if let Some(place) = known.place.take() {
            pool.open.remove(&(place, worker));
        }
        let slots = u64::from(known.life.slots);
        let load = held + u64::from(known.elsewhere);
        if !known.is_open() || load >= slots {
            return;
        }
        self.turns += 1;
        // How full it is, in parts of 2²⁰, which is less than all of them.
        let doubt = u64::from(!known.is_proven) << 20;
        let place = (doubt + (load << 20) / slots, self.turns);
        known.place = Some(place);
        pool.open.insert((place, worker));
    }
}

#[cfg(test)]
#[path = "roster_tests.rs"]
mod tests;
