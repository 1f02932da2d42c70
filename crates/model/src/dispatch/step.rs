//! What may happen, and which of it is a fault.

use super::message::{Report, Section};
use super::state::{Key, Life};

/// A step. Owners are numbered from the oldest that can still be heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An owner commits a grant and tells the worker.
    Grant(usize, Key, Life),
    /// An owner takes back what a worker held.
    Revoke(usize, Key, Life),
    /// The owner begins its stream to a worker, with a sync.
    Open(Life),
    /// The owner has noticed that a section is lost: it sends a sync.
    Repair(Life),
    /// An owner sends a sync that nobody needs.
    SyncNeedlessly(usize, Life),
    /// An owner hears a report, perhaps again.
    Hear(usize, Report),
    /// Another executor takes the partition in a new epoch; the old owner does not know it yet.
    TakeOver,
    /// A worker takes a section.
    Take(Section),
    /// A worker takes a section that it will get once more.
    TakeCopy(Section),
    /// A section is lost.
    LoseSection(Section),
    /// The broker returns a grant to its owner, because it could put it into no queue.
    Bounce(Section),
    /// A worker starts the program of an attempt.
    Start(Life, Key),
    /// The program of an attempt ends.
    End(Life, Key),
    /// A worker reports what became of this attempt.
    Tell(Key, Report),
    /// A worker of which nothing came back tells only what it has seen.
    TellSeen(Report),
    /// A report is lost.
    LoseReport(Report),
    /// A worker gives back what waits there.
    GiveBack(Life),
    /// The lease of a worker ends: it has killed what it ran, and nobody else knows.
    EndLife(Life),
    /// The life of a worker is known to be over.
    SeeOver(Life),
}

impl Step {
    /// Which fault it is; none if it is what the protocol may do by itself.
    pub fn fault(&self) -> Option<Fault> {
        Some(match self {
            Self::TakeOver => Fault::Takeover,
            Self::EndLife(_) => Fault::Death,
            Self::LoseSection(_) | Self::Bounce(_) | Self::LoseReport(_) => Fault::Loss,
            Self::TakeCopy(_) => Fault::Doubling,
            Self::GiveBack(_) => Fault::Return,
            Self::SyncNeedlessly(..) => Fault::Sync,
            _ => return None,
        })
    }
}

/// A kind of what may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Another executor takes the partition.
    Takeover,
    /// The lease of a worker ends.
    Death,
    /// A message is lost, or returned by the broker.
    Loss,
    /// A section comes twice.
    Doubling,
    /// A worker gives back what waits.
    Return,
    /// A sync that nobody needs.
    Sync,
}

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Of [`Fault::Takeover`].
    pub takeovers: u8,
    /// Of [`Fault::Death`].
    pub deaths: u8,
    /// Of [`Fault::Loss`].
    pub losses: u8,
    /// Of [`Fault::Doubling`].
    pub doublings: u8,
    /// Of [`Fault::Return`].
    pub returns: u8,
    /// Of [`Fault::Sync`].
    pub syncs: u8,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        takeovers: 0,
        deaths: 0,
        losses: 0,
        doublings: 0,
        returns: 0,
        syncs: 0,
    };

    /// How often this one may happen.
    pub(super) fn of(&mut self, fault: Fault) -> &mut u8 {
        match fault {
            Fault::Takeover => &mut self.takeovers,
            Fault::Death => &mut self.deaths,
            Fault::Loss => &mut self.losses,
            Fault::Doubling => &mut self.doublings,
            Fault::Return => &mut self.returns,
            Fault::Sync => &mut self.syncs,
        }
    }
}
