//! What the store, the broker, the owners and the workers hold.

use std::collections::{BTreeMap, BTreeSet};

/// One request, and the execution it becomes; requests are numbered as the broker has them.
pub(super) type Execution = u8;
pub(super) type Attempt = u8;
/// Epoch and place.
pub(super) type Seq = (u8, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Status {
    Queued,
    Requested,
    /// By this worker.
    Running(u8),
}

/// A row of the active executions; one that ends is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) status: Status,
    pub(super) attempt: Attempt,
}

/// What the store knows of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Stored {
    /// Its place, from the moment it is accepted and for ever.
    pub(super) seq: Option<Seq>,
    pub(super) row: Option<Row>,
    /// How many outcomes the history has.
    pub(super) outcomes: u8,
}

/// One change of a batch; all of them check the fence together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Write {
    /// Attempt 0 waits, attempt 1 holds a slot at once.
    Accept(Execution, Seq, Attempt),
    Grant(Execution, Attempt),
    /// Takes the slot of this attempt back.
    Revoke(Execution, Attempt),
    End(Execution),
}

/// What an owner acknowledges when its batch is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ack {
    Nothing,
    Request(Execution),
    Completion(Execution, Attempt),
}

/// What an owner has decided and not committed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Draft {
    pub(super) writes: Vec<Write>,
    pub(super) ack: Ack,
    /// It was sent before, with an unknown outcome.
    pub(super) again: bool,
}

/// A waiting execution as an owner remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Waiting {
    pub(super) seq: Seq,
    pub(super) execution: Execution,
    pub(super) attempt: Attempt,
}

/// The memory of one executor. Epoch 0 owns nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) epoch: u8,
    /// Its queue is rebuilt from the store.
    pub(super) loaded: bool,
    pub(super) next_place: u8,
    pub(super) active: BTreeSet<(Execution, Attempt)>,
    /// How many slots are taken, for the variant that only counts.
    pub(super) taken: i8,
    /// In order.
    pub(super) waiting: Vec<Waiting>,
    pub(super) draft: Option<Draft>,
}

/// The lease of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lease {
    Holds,
    /// Expired; what the worker runs may still run.
    Expired,
    /// Expired for longer than the grace.
    GraceOver,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The epoch in the lease of the partition.
    pub(super) epoch: u8,
    pub(super) stored: Vec<Stored>,
    /// Somebody was granted a slot before one that had waited longer.
    pub(super) overtaken: bool,
    pub(super) owners: Vec<Owner>,
    /// A first try of a batch that the store has not carried out yet, and its epoch.
    pub(super) late: Option<(u8, Vec<Write>)>,
    pub(super) unknowns: u8,
    /// Requests that are not acknowledged, in the order of the broker.
    pub(super) requests: Vec<Execution>,
    /// Who receives them.
    pub(super) receiver: Option<u8>,
    pub(super) leases: Vec<Lease>,
    /// Programs that run: worker, execution, attempt.
    pub(super) runs: BTreeSet<(u8, Execution, Attempt)>,
    /// How often each attempt was started.
    pub(super) starts: BTreeMap<(Execution, Attempt), u8>,
    /// Completions that were sent, and whether an owner has acknowledged them.
    pub(super) completions: BTreeMap<(Execution, Attempt), bool>,
}

impl State {
    pub(super) fn new(executions: u8) -> Self {
        Self {
            epoch: 0,
            stored: vec![Stored::default(); usize::from(executions)],
            overtaken: false,
            owners: vec![Owner::default(); 2],
            late: None,
            unknowns: 0,
            requests: (0..executions).collect(),
            receiver: None,
            leases: vec![Lease::Holds; 2],
            runs: BTreeSet::new(),
            starts: BTreeMap::new(),
            completions: BTreeMap::new(),
        }
    }

    pub(super) fn of(&self, execution: Execution) -> &Stored {
        &self.stored[usize::from(execution)]
    }

    pub(super) fn of_mut(&mut self, execution: Execution) -> &mut Stored {
        &mut self.stored[usize::from(execution)]
    }

    /// Executions that hold a slot in the store, with their attempt.
    pub(super) fn slots(&self) -> impl Iterator<Item = (Execution, Attempt)> + '_ {
        (0..).zip(&self.stored).filter_map(|(execution, stored)| {
            let row = stored.row.filter(|row| row.status != Status::Queued)?;
            Some((execution, row.attempt))
        })
    }

    /// Carries out a batch. The conditions are those of the stores' commit statements: writing a
    /// batch twice in a row is the same as once.
    pub(super) fn carry_out(&mut self, writes: &[Write]) {
        for write in writes {
            match *write {
                Write::Accept(execution, seq, attempt) => {
                    let stored = self.of_mut(execution);
                    stored.seq.get_or_insert(seq);
                    let status = if attempt == 0 {
                        Status::Queued
                    } else {
                        Status::Requested
                    };
                    stored.row.get_or_insert(Row { status, attempt });
                }
                Write::Grant(execution, attempt) => {
                    if let Some(row) = &mut self.of_mut(execution).row
                        && (row.attempt < attempt
                            || (row.attempt == attempt && row.status == Status::Queued))
                    {
                        *row = Row {
                            status: Status::Requested,
                            attempt,
                        };
                    }
                }
                Write::Revoke(execution, attempt) => {
                    if let Some(row) = &mut self.of_mut(execution).row
                        && row.attempt <= attempt
                    {
                        *row = Row {
                            status: Status::Queued,
                            attempt,
                        };
                    }
                }
                Write::End(execution) => {
                    let stored = self.of_mut(execution);
                    if stored.row.take().is_some() {
                        stored.outcomes += 1;
                    }
                }
            }
        }
        self.overtaken |= writes.iter().any(|write| match *write {
            Write::Grant(execution, _) | Write::Accept(execution, _, 1) => {
                let seq = self.of(execution).seq;
                self.stored.iter().any(|other| {
                    other.seq < seq && other.row.is_some_and(|row| row.status == Status::Queued)
                })
            }
            _ => false,
        });
    }
}
