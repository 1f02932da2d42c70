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
    /// What the worker had seen of the current owner when it said so; ends do not tell.
    pub seen: Seen,
}

/// How much a worker had seen of its stream: not the number itself, but what an owner that hears it
/// now, or later, can conclude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Seen {
    /// Less than any owner asks for.
    Less,
    /// More has come since, but it is enough for the mark that is set.
    Enough,
    /// All that the worker has taken until now.
    All,
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
        let Self {
            life,
            keys,
            ended,
            seen,
        } = self;
        let what = if *ended { "ended" } else { "returned" };
        write!(f, "({what} at {life}: {keys:?}, seen: {seen:?})")
    }
}
