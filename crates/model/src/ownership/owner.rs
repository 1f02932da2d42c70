//! What an executor decides: the queue of the action in its memory.

use super::protocol::Variant;
use super::state::{Ack, Attempt, Draft, Execution, Owner, State, Status, Waiting, Write};

impl Owner {
    /// The memory of a new owner.
    pub(super) fn load(&mut self, state: &State, limit: u8, variant: Variant) {
        self.loaded = true;
        self.active = state.slots().collect();
        self.taken = i8::try_from(self.active.len()).unwrap_or(i8::MAX);
        for (execution, stored) in (0..).zip(&state.stored) {
            if let (Some(seq), Some(row)) = (stored.seq, stored.row)
                && row.status == Status::Queued
            {
                self.waiting.push(Waiting {
                    seq,
                    execution,
                    attempt: row.attempt,
                });
            }
        }
        self.waiting.sort_unstable();
        let mut writes = Vec::new();
        self.serve(limit, variant, &mut writes);
        if !writes.is_empty() {
            self.decided(writes, Ack::Nothing);
        }
    }

    fn has_free_slot(&self, limit: u8, variant: Variant) -> bool {
        let taken = if variant == Variant::Counter {
            i64::from(self.taken)
        } else {
            i64::try_from(self.active.len()).unwrap_or(i64::MAX)
        };
        taken < i64::from(limit)
    }

    fn hold(&mut self, execution: Execution, attempt: Attempt) {
        self.active.insert((execution, attempt));
        self.taken += 1;
    }

    fn decided(&mut self, writes: Vec<Write>, ack: Ack) {
        self.draft = Some(Draft {
            writes,
            ack,
            again: false,
        });
    }

    /// Grants free slots in order.
    fn serve(&mut self, limit: u8, variant: Variant, writes: &mut Vec<Write>) {
        while self.has_free_slot(limit, variant) && !self.waiting.is_empty() {
            let next = self.waiting.remove(0);
            self.hold(next.execution, next.attempt + 1);
            writes.push(Write::Grant(next.execution, next.attempt + 1));
        }
    }

    /// Decides on a request.
    pub(super) fn take_in(
        &mut self,
        state: &State,
        execution: Execution,
        limit: u8,
        variant: Variant,
    ) {
        if state.of(execution).seq.is_some() {
            // Accepted before: it is only acknowledged.
            return self.decided(Vec::new(), Ack::Request(execution));
        }
        let seq = (self.epoch, self.next_place);
        self.next_place += 1;
        let attempt = if self.has_free_slot(limit, variant) && self.waiting.is_empty() {
            self.hold(execution, 1);
            1
        } else {
            self.waiting.push(Waiting {
                seq,
                execution,
                attempt: 0,
            });
            0
        };
        self.decided(
            vec![Write::Accept(execution, seq, attempt)],
            Ack::Request(execution),
        );
    }

    /// Decides on a completion.
    pub(super) fn complete(
        &mut self,
        execution: Execution,
        attempt: Attempt,
        limit: u8,
        variant: Variant,
    ) {
        let held = self.active.remove(&(execution, attempt));
        let mut writes = Vec::new();
        if held || variant == Variant::Counter {
            self.taken -= 1;
            writes.push(Write::End(execution));
            self.serve(limit, variant, &mut writes);
        }
        self.decided(writes, Ack::Completion(execution, attempt));
    }

    /// Takes the slot of a lost worker back. The last attempt ends the execution.
    pub(super) fn revoke(
        &mut self,
        state: &State,
        execution: Execution,
        attempt: Attempt,
        bounds: (u8, Attempt),
        variant: Variant,
    ) {
        let (limit, max_attempts) = bounds;
        if !self.active.remove(&(execution, attempt)) {
            return;
        }
        self.taken -= 1;
        let mut writes = Vec::new();
        let again = if variant == Variant::SameAttempt {
            attempt - 1
        } else {
            attempt
        };
        match state.of(execution).seq {
            Some(seq) if attempt < max_attempts => {
                let seq = if variant == Variant::RetryAtBack {
                    self.next_place += 1;
                    (self.epoch, self.next_place - 1)
                } else {
                    seq
                };
                self.waiting.push(Waiting {
                    seq,
                    execution,
                    attempt: again,
                });
                self.waiting.sort_unstable();
                writes.push(Write::Revoke(execution, attempt));
            }
            _ => writes.push(Write::End(execution)),
        }
        self.serve(limit, variant, &mut writes);
        self.decided(writes, Ack::Nothing);
    }
}
