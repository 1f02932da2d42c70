//! What happened in a run: always as a hash, as text when it is wanted.

use std::fmt;
use std::hash::{Hash, Hasher};

use attune_core::{Attempt, Epoch, ExecutionId, PartitionId, Status};

use crate::bus::{Name, Party};
use crate::oracle::Rule;
use crate::plan::Time;

/// One thing that happened.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) enum Note {
    Op(usize),
    Fault(usize),
    Healed,
    Arrived(Name, u64),
    Silent(Party),
    Started(Party),
    Stopped(Party),
    Acquired(PartitionId, Epoch),
    TakenOver(Party, PartitionId, Epoch),
    SteppedDown(Party, PartitionId),
    Decided(Party, u64),
    Committed(u64, bool),
    Fenced(u64),
    Accepted(ExecutionId),
    Granted(ExecutionId, Attempt),
    Revoked(ExecutionId, Attempt),
    Ended(ExecutionId, Status),
    Dispatched(ExecutionId, Attempt),
    Taken(ExecutionId, Attempt),
    RunStarted(Party, ExecutionId, Attempt),
    RunEnded(Party, ExecutionId, Attempt, Status),
    RunKilled(Party, ExecutionId, Attempt),
    LifeOver(Party),
    Answered(usize),
    Broken(Rule),
}

impl Hash for Party {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Owner(n, life) => (0, n, life).hash(state),
            Self::Worker(n, life) => (1, n, life).hash(state),
            Self::Relay(n, life) => (2, n, life).hash(state),
        }
    }
}

/// Short forms, so that a history can be read.
struct Short<T>(T);

impl fmt::Display for Short<ExecutionId> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seq = self.0.seq();
        let place = seq.0 & 0xffff_ffff;
        write!(f, "x{}.{}.{place}", self.0.partition(), seq.epoch())
    }
}

impl fmt::Display for Short<Party> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Party::Owner(n, life) => write!(f, "owner {n}.{life}"),
            Party::Worker(n, life) => write!(f, "worker {n}.{life}"),
            Party::Relay(n, life) => write!(f, "relay {n}.{life}"),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Op(n) => write!(f, "client operation #{n}"),
            Self::Fault(n) => write!(f, "fault #{n}"),
            Self::Healed => f.write_str("everything is healed"),
            Self::Arrived(name, place) => write!(f, "{name:?} has message {place}"),
            Self::Silent(party) => write!(f, "the broker gives {} up", Short(party)),
            Self::Started(party) => write!(f, "{} starts", Short(party)),
            Self::Stopped(party) => write!(f, "{} dies", Short(party)),
            Self::Acquired(p, epoch) => write!(f, "partition {p} is acquired, epoch {epoch}"),
            Self::TakenOver(party, p, epoch) => {
                write!(f, "{} serves partition {p} in epoch {epoch}", Short(party))
            }
            Self::SteppedDown(party, p) => write!(f, "{} lets partition {p} go", Short(party)),
            Self::Decided(party, batch) => write!(f, "{} decides batch {batch}", Short(party)),
            Self::Committed(batch, false) => write!(f, "batch {batch} is stored"),
            Self::Committed(batch, true) => write!(f, "batch {batch} is stored again"),
            Self::Fenced(batch) => write!(f, "batch {batch} is fenced off"),
            Self::Accepted(id) => write!(f, "  accept {}", Short(id)),
            Self::Granted(id, attempt) => write!(f, "  grant {} attempt {attempt}", Short(id)),
            Self::Revoked(id, attempt) => write!(f, "  revoke {} attempt {attempt}", Short(id)),
            Self::Ended(id, status) => write!(f, "  end {} as {status}", Short(id)),
            Self::Dispatched(id, attempt) => {
                write!(f, "{} attempt {attempt} is dispatched", Short(id))
            }
            Self::Taken(id, attempt) => write!(f, "{} attempt {attempt} is taken", Short(id)),
            Self::RunStarted(party, id, attempt) => {
                write!(f, "{} runs {} attempt {attempt}", Short(party), Short(id))
            }
            Self::RunEnded(party, id, attempt, status) => {
                let (party, id) = (Short(party), Short(id));
                write!(f, "{party} has run {id} attempt {attempt}: {status}")
            }
            Self::RunKilled(party, id, attempt) => {
                write!(f, "{} kills {} attempt {attempt}", Short(party), Short(id))
            }
            Self::LifeOver(party) => write!(f, "{} has lost its lease", Short(party)),
            Self::Answered(ask) => write!(f, "ask {ask} is answered"),
            Self::Broken(rule) => write!(f, "BROKEN: {}", rule.name()),
        }
    }
}

/// FNV-1a: the same on every machine.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

pub(crate) struct Trace {
    fnv: Fnv,
    lines: Option<Vec<String>>,
}

impl Trace {
    pub(crate) fn new(keep_lines: bool) -> Self {
        Self {
            fnv: Fnv(0xcbf2_9ce4_8422_2325),
            lines: keep_lines.then(Vec::new),
        }
    }

    pub(crate) fn note(&mut self, now: Time, note: Note) {
        (now, note).hash(&mut self.fnv);
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{now:>7} ms  {note}"));
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.fnv.finish()
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
