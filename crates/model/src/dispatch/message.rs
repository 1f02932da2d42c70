//! What owners and workers send each other.

use std::fmt;

use super::state::{Key, Life};

/// From an owner to a worker life: one numbered section of the stream of an epoch.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Section {
    /// To whom.
    pub life: Life,
    /// Of which owner.
    pub epoch: u8,
    /// Which one of that owner to that life, from 0.
    pub number: u8,
    /// What it says.
    pub content: Content,
    /// The worker has taken a copy of it: the broker cannot return it any more.
    pub delivered: bool,
}

/// What a section says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Content {
    /// This attempt may be started here.
    Grant(Key),
    /// What was reported of these is committed: they can be forgotten.
    Settled(Vec<Key>),
    /// All that the owner knows the worker to hold. It starts nothing.
    Sync(Vec<Key>),
}

/// From a worker: one end, or everything that it has given back and that is not settled.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Report {
    /// From whom.
    pub life: Life,
    /// The attempts that it is about.
    pub keys: Vec<Key>,
    /// They have ended; else they never began here and never will.
    pub ended: bool,
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            life,
            epoch,
            number,
            content,
            delivered,
        } = self;
        let again = if *delivered { ", a copy" } else { "" };
        write!(f, "({epoch}/{number} to {life}{again}: {content:?})")
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { life, keys, ended } = self;
        let what = if *ended { "ended" } else { "returned" };
        write!(f, "({what} at {life}: {keys:?})")
    }
}
