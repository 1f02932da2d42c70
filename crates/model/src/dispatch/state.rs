//! What the store, the owners, the network and the workers hold.

use std::fmt;

use super::Bounds;
use super::message::{Report, Section};
use super::step::Faults;

/// How many worker lives there are: two show whatever more could.
pub(super) const LIVES: usize = 2;

/// The last attempt that is granted, so that two executions that go to and fro end somewhere.
pub(super) const LAST_ATTEMPT: u8 = 10;

/// A worker from registering to the end of its lease; one is as good as the other.
pub type Life = usize;

/// An attempt of an execution. Each grant has a new one, so it names the grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Numbered in order of waiting.
    pub execution: usize,
    /// How often the execution has been granted.
    pub attempt: u8,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.execution, self.attempt)
    }
}

/// A promise that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breach {
    /// More programs run than the limit allows.
    AboveLimit,
    /// An attempt was started twice.
    StartedTwice,
    /// An attempt that had begun was given back as one that had not.
    BegunGivenBack,
    /// A program was killed that holds its slot.
    HolderKilled,
    /// With a limit of 1: one was started before another that was granted earlier.
    OutOfOrder,
}

/// An execution in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Row {
    /// Its last attempt, 0 if there was none.
    Queued(u8),
    /// This attempt, to this life.
    Granted(u8, Life),
    Ended,
}

/// Who ends a life, and who knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lease {
    Live,
    /// The worker knows that it is over, and nobody else.
    Over,
    /// Owners know it too.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Waiting,
    Running,
    Ended,
    /// It never began here and never will.
    Returned,
}

/// What a worker knows of an attempt until it is settled.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) phase: Phase,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Worker {
    pub(super) lease: Lease,
    /// Whose sections it takes.
    pub(super) epoch: u8,
    /// The number of the section that it takes next.
    pub(super) next: u8,
    /// In order of arrival.
    pub(super) entries: Vec<Entry>,
    /// What it has reported, for the variant that reports once.
    pub(super) reported: Vec<Key>,
}

/// What an owner sends to one worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stream {
    /// The number of the section that comes next.
    pub(super) next: u8,
    /// Its sync was sent in this epoch.
    pub(super) open: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) epoch: u8,
    /// The rows as a stale owner remembers them; nothing for the current one, which knows them.
    pub(super) remembered: Vec<Row>,
    pub(super) streams: [Stream; LIVES],
}

/// Which attempts were ever started.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Started(u64);

impl Started {
    /// Bits for each execution, one for each attempt.
    const WIDTH: usize = 12;

    fn bit(key: Key) -> u64 {
        1 << (key.execution * Self::WIDTH + usize::from(key.attempt))
    }

    pub(super) fn insert(&mut self, key: Key) {
        self.0 |= Self::bit(key);
    }

    pub(super) fn has(self, key: Key) -> bool {
        self.0 & Self::bit(key) != 0
    }

    /// Whether any attempt of this execution was started.
    pub(super) fn has_any(self, execution: usize) -> bool {
        (self.0 >> (execution * Self::WIDTH)) & ((1 << Self::WIDTH) - 1) != 0
    }
}

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) rows: Vec<Row>,
    /// Those that can be heard, the current one last.
    pub(super) owners: Vec<Owner>,
    pub(super) workers: [Worker; LIVES],
    /// On their way to the workers.
    pub(super) sections: Vec<Section>,
    /// On their way to the owners.
    pub(super) reports: Vec<Report>,
    pub(super) started: Started,
    /// The owner's marks of O3: something came back, and the worker has not yet shown that it has
    /// seen all before it. How many sections it must still take for that.
    pub(super) closing: [Option<u8>; LIVES],
    /// What may still go wrong.
    pub(super) left: Faults,
    pub(super) breach: Option<Breach>,
}

impl State {
    /// All executions wait. The first owner's streams are open; every later one opens its own.
    pub(super) fn new(bounds: &Bounds) -> Self {
        let stream = Stream {
            next: 0,
            open: true,
        };
        let worker = || Worker {
            lease: Lease::Live,
            epoch: 1,
            next: 0,
            entries: Vec::new(),
            reported: Vec::new(),
        };
        Self {
            rows: vec![Row::Queued(0); bounds.executions],
            owners: vec![Owner {
                epoch: 1,
                remembered: Vec::new(),
                streams: [stream; LIVES],
            }],
            workers: [worker(), worker()],
            sections: Vec::new(),
            reports: Vec::new(),
            started: Started::default(),
            closing: [None; LIVES],
            left: bounds.faults,
            breach: None,
        }
    }

    /// Everything has ended, and no worker that lives remembers anything.
    pub(super) fn is_done(&self) -> bool {
        self.rows.iter().all(|row| *row == Row::Ended)
            && self
                .workers
                .iter()
                .all(|worker| worker.lease != Lease::Live || worker.entries.is_empty())
    }

    /// The index of the owner whose commits count.
    pub(super) fn current(&self) -> usize {
        self.owners.len() - 1
    }

    /// The rows as this owner knows them.
    pub(super) fn rows_of(&self, owner: usize) -> &[Row] {
        if owner == self.current() {
            &self.rows
        } else {
            &self.owners[owner].remembered
        }
    }

    /// Whether the store has this attempt granted to this life.
    pub(super) fn holds(&self, key: Key, life: Life) -> bool {
        self.rows[key.execution] == Row::Granted(key.attempt, life)
    }

    /// How many programs run.
    pub(super) fn running(&self) -> usize {
        self.workers.iter().map(Worker::running).sum()
    }

    /// An attempt goes back to its place as one that never began.
    pub(super) fn note_given_back(&mut self, key: Key) {
        if self.started.has(key) {
            self.breach = Some(Breach::BegunGivenBack);
        }
    }
}

/// What is granted in these rows: attempt and life, in order of waiting.
pub(super) fn granted(rows: &[Row]) -> impl Iterator<Item = (Key, Life)> + '_ {
    rows.iter()
        .enumerate()
        .filter_map(|(execution, row)| match *row {
            Row::Granted(attempt, life) => Some((Key { execution, attempt }, life)),
            Row::Queued(_) | Row::Ended => None,
        })
}
