//! Says what was committed: grants to the workers that they name (`links.rs`), answers to the askers,
//! snapshots of the queues; then acknowledges; then says what is refused, of which nothing is stored.

use std::collections::HashMap;
use std::sync::Arc;

use attune_core::{ExecutionId, PartitionId};

use super::again::Again;
use super::snapshots::Snapshots;
use super::{Dispatch, Output, Owner, Send};
use crate::partition::Answer;
use crate::queue::Millis;
use crate::round::Round;
use crate::stored::Body;

/// What is to be told, and what is being told.
#[derive(Debug, Default)]
pub(super) struct Telling {
    pub(super) again: Again,
    pub(super) snapshots: Snapshots,
}

impl Telling {
    /// A partition is served no more: its next owner tells what was not told.
    pub(super) fn forget(&mut self, partition: PartitionId) {
        self.again.forget(partition);
        self.snapshots.forget(partition);
    }
}

impl Owner {
    /// Tells what a round has decided, which is stored now.
    pub(super) fn tell_round(&mut self, now: Millis, round: Round, bodies: Vec<Body>) {
        let Round { commit, tells } = round;
        self.links.round_is_over();
        let mut bodies: HashMap<ExecutionId, Body> =
            bodies.into_iter().map(|body| (body.id, body)).collect();
        // Whoever wrote it has let go of it, so that nothing is copied as a rule.
        let inserts = Arc::try_unwrap(commit)
            .map(|commit| commit.batch.inserts)
            .unwrap_or_else(|commit| commit.batch.inserts.clone());
        for new in inserts {
            if new.worker.is_some() {
                let submission = Arc::unwrap_or_clone(new.submission);
                let body = Body {
                    id: new.id,
                    parameters: submission.parameters,
                    timeout_seconds: submission.timeout_seconds,
                    trace: submission.trace,
                };
                bodies.insert(new.id, body);
            }
        }
        let (mut answers, mut acks) = (Vec::new(), Vec::new());
        let (mut refusals, mut events) = (Vec::new(), Vec::new());
        let mut waits = Vec::new();
        for (id, tell) in tells {
            let tell = tell.whole();
            let counts = tell.counts.into_iter();
            self.out
                .extend(counts.map(|(counter, times)| Output::Count(counter, times)));
            waits.extend(tell.waits);
            self.out
                .extend(tell.notices.into_iter().map(Output::Notice));
            let touched = tell.touched.into_iter().map(|action_id| (id, action_id));
            self.telling.snapshots.changed(touched);
            for grantee in tell.dispatches {
                // Where there is no body it is read by itself: the grant is stored.
                let body = bodies.remove(&grantee.execution_id);
                if let Some(dispatch) = self.telling.again.line_up(id, grantee, body) {
                    self.line_up(id, dispatch);
                }
            }
            for (worker, action_id) in tell.recalls {
                self.links.recall(id, worker, action_id);
            }
            for (worker, key) in tell.cancels {
                self.links.cancel(id, worker, key);
            }
            for (worker, key) in tell.settled {
                self.links.settle(now, id, worker, key);
            }
            events.extend(tell.events);
            let is_refusal = |(_, answer): &(_, Answer)| answer.outcome.is_err();
            let (no, yes): (Vec<_>, Vec<_>) = tell.answers.into_iter().partition(is_refusal);
            answers.extend(yes);
            if no.is_empty() {
                acks.extend(tell.acks);
            } else {
                // By itself: nobody is told when a message of it comes again.
                refusals.push(Output::Refuse {
                    deliveries: tell.acks,
                    answers: no,
                });
            }
        }
        if !waits.is_empty() {
            self.out.push(Output::Waited(waits));
        }
        if !answers.is_empty() {
            self.out.push(Output::Send(Send::Answers(answers)));
        }
        if !events.is_empty() {
            self.out.push(Output::Send(Send::Events(events)));
        }
        self.go_on_telling(now);
        // Last of all: what it led to is stored, and told or found again by whoever comes next.
        if !acks.is_empty() {
            self.out.push(Output::Ack(acks));
        }
        self.out.extend(refusals);
    }

    /// Puts a grant on its way to its worker.
    pub(super) fn line_up(&mut self, partition: PartitionId, dispatch: Dispatch) {
        self.links.grant(partition, dispatch);
        if let Some(place) = self.places.get_mut(&partition) {
            place.untold += 1;
        }
    }

    pub(super) fn told(&mut self, partition: PartitionId, count: usize) {
        if let Some(place) = self.places.get_mut(&partition) {
            place.untold = place.untold.saturating_sub(count);
        }
    }

    /// Tells what can be told now.
    pub(super) fn go_on_telling(&mut self, now: Millis) {
        self.go_on_with_links(now);
        self.read_bodies(now);
        self.publish_snapshots(now);
    }
}

#[cfg(test)]
#[path = "telling_tests.rs"]
mod tests;
