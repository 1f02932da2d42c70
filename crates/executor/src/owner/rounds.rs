//! The rounds of an owner: gather → look up → decide → commit → tell.
//!
//! While one round commits, the next gathers: rounds are small when little arrives and large
//! under load, without any delay of their own (group commit). Rounds follow one another strictly,
//! so that every decision is made on what is stored.
//!
//! What a commit leads to:
//!
//! - *made*: what was decided is told.
//! - *fenced*: the lost partitions are dropped, and the rest is written at once.
//! - *refused*: nothing was written. The same is written again, each partition by itself, after a
//!   pause that grows; meanwhile nothing else is decided about it, and its messages stay where
//!   they are. No new epoch is needed, because nothing of it can come late. What stands beside
//!   the executions is taken out first, and holds nothing up (`beside.rs`).
//! - *unknown*: the first try may still be on its way. The partitions are loaded again in a new
//!   epoch, so that it finds a fence when it comes.

use std::collections::HashMap;
use std::sync::Arc;

use attune_core::{Action, Bug, PartitionId, Reject, RequestId};

mod in_force;

use in_force::{Told, Unanswered};

use super::{Call, Delivered, Notice, Output, Owner, Purpose, Reply, Send, Stage, Work};
use crate::counters::Counter;
use crate::fact::Fact;
use crate::partition::{Accepted, Answer, Effect, Event};
use crate::queue::Millis;
use crate::round::{Commit, Draft, Round};
use crate::stored::KnownRequest;

/// What a round is doing.
#[derive(Debug, Default)]
enum Step {
    #[default]
    Idle,
    LookingUp(Vec<Delivered>),
    Committing(Box<Round>),
}

/// The round that is under way, and what waits for the next.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    step: Step,
    /// The partition whose turn it is to be first.
    turn: Option<PartitionId>,
    /// Rounds that were decided.
    pub(super) made: u64,
    /// Something was decided that nobody had delivered, and nothing came of it for the store: what follows
    /// has no answer to wait for.
    goes_on: bool,
    unanswered: Unanswered,
}

impl Rounds {
    /// The executions that the round under way writes.
    pub(super) fn under_way(&self) -> Option<&Arc<Commit>> {
        match &self.step {
            Step::Committing(round) => Some(&round.commit),
            Step::Idle | Step::LookingUp(_) => None,
        }
    }

    /// The next step is to come at once.
    pub(super) fn go_on(&mut self) {
        self.goes_on = true;
    }

    /// When the next step is to come.
    pub(super) fn wake_at(&self, now: Millis) -> Option<Millis> {
        let at_once = self.goes_on.then_some(now);
        at_once.or_else(|| self.unanswered.wake_at())
    }

    /// Whether the round under way decides about a partition.
    pub(super) fn touches(&self, partition: PartitionId) -> bool {
        match &self.step {
            Step::Committing(round) => round.tells.contains_key(&partition),
            Step::Idle | Step::LookingUp(_) => false,
        }
    }
}

impl Owner {
    /// Whether a round may begin: none is under way.
    pub(super) fn may_begin(&self) -> bool {
        matches!(self.rounds.step, Step::Idle) && !self.has_ended()
    }

    /// Whether anything may be decided about a partition now.
    pub(super) fn is_open(&self, id: PartitionId) -> bool {
        self.is_kept(id) && !self.rewrites.contains_key(&id) && self.partition(id).is_some()
    }

    /// Begins a round if there is anything to decide.
    pub(super) fn begin_round(&mut self, now: Millis) {
        self.rounds.goes_on = false;
        self.look_for_lanes(now);
        if !self.may_begin() || !self.is_trusted(now) {
            return;
        }
        if self.sweep.stops_rounds() && !self.sweep.has_read() {
            return;
        }
        let work = self.gather(now);
        if work.is_empty() && !self.has_something_due(now) {
            return;
        }
        let (requests, actions) = self.questions(self.clock.at(now), &work);
        if requests.is_empty() && actions.is_empty() {
            return self.decide(now, work, &[], Vec::new());
        }
        self.rounds.step = Step::LookingUp(work);
        self.look_ups.ask(now);
        self.slow.asks(now);
        self.call(Purpose::Round, Call::LookUp { requests, actions });
    }

    fn has_something_due(&self, now: Millis) -> bool {
        let wall = self.clock.at(now);
        let due = |(id, place): (&PartitionId, &super::Place)| match &place.stage {
            Stage::Serving(partition) => {
                let is_due = partition.next_deadline().is_some_and(|time| time <= wall);
                is_due && self.is_open(*id)
            }
            _ => false,
        };
        self.places.iter().any(due)
            || self.pending.iter().any(|(id, _)| self.is_open(*id))
            || self
                .places
                .keys()
                .any(|id| self.is_open(*id) && self.is_behind(*id))
            || self.sweep.has_read()
            || self.sweep.learnt().any(|partition| self.is_open(partition))
            || self.snapshots_are_due(now)
            || self.has_line_to_serve()
    }

    /// Whether somebody stands in line for workers that have room.
    fn has_line_to_serve(&self) -> bool {
        let ready = self.roster.lock().ready();
        let mut partitions = ready.iter().flat_map(|(_, partitions)| partitions);
        partitions.any(|id| self.is_open(*id))
    }

    /// Takes what was delivered, as much as one round may: completions of all partitions first,
    /// and partitions in turns.
    fn gather(&mut self, now: Millis) -> Vec<Delivered> {
        let open: Vec<PartitionId> = self
            .places
            .iter()
            .filter(|(id, place)| !place.mailbox.is_empty() && self.is_open(**id))
            .map(|(id, _)| *id)
            .collect();
        let turn = open.partition_point(|id| Some(*id) <= self.rounds.turn);
        let order: Vec<PartitionId> = open[turn..].iter().chain(&open[..turn]).copied().collect();
        self.rounds.turn = order.first().copied().or(self.rounds.turn);
        let alone = self.alone(now);
        let max_items = self.steps.items(self.options.round_max_items);
        let max_bytes = self.options.round_max_bytes;
        let (mut items, mut bytes, mut work) = (0, 0, Vec::new());
        // Completions take at most three quarters, so that commands are never starved.
        for (is_control, share) in [(true, max_items * 3 / 4), (false, max_items)] {
            if !is_control && self.links.is_full() {
                break;
            }
            for id in &order {
                if !is_control && !self.look_ups.admits(*id, alone) {
                    continue;
                }
                let Some(place) = self.places.get_mut(id) else {
                    continue;
                };
                while items < share.max(1)
                    && (work.is_empty() || bytes < max_bytes)
                    && let Some(delivered) = place.mailbox.pop(is_control)
                {
                    items += delivered.work.len();
                    bytes += delivered.bytes;
                    work.push(delivered);
                }
            }
        }
        work
    }

    /// Decides on what was gathered, and writes it.
    fn decide(
        &mut self,
        now: Millis,
        work: Vec<Delivered>,
        requests: &[KnownRequest],
        mut actions: Vec<Action>,
    ) {
        let wall = self.clock.at(now);
        let known: HashMap<RequestId, KnownRequest> = requests
            .iter()
            .map(|known| (known.request_id, *known))
            .collect();
        let mut draft = Draft::default();
        let open: Vec<PartitionId> = self
            .places
            .keys()
            .copied()
            .filter(|id| self.is_open(*id))
            .collect();
        let most = self.options.step_items;
        let (items, expiries) = (self.steps.items(most), self.steps.expiries(most));
        // The latest takes the place of all others, however few a step may change otherwise: fewer only where the
        // store could not write as many.
        let replaced = self.steps.items(usize::MAX);
        self.add_learnt(&open, &mut actions);
        self.bring_policies(wall, &open, &mut draft);
        self.note_returns(&open);
        for id in &open {
            let Some(partition) = self.partition_mut(*id) else {
                continue;
            };
            partition.bound_steps(items, expiries, replaced);
            // A lowered limit holds for everything that this round grants.
            for action in actions.iter().filter(|action| action.partition == *id) {
                draft.add(
                    *id,
                    partition.step(wall, Event::ActionKnown(Box::new(action.clone()))),
                );
            }
            draft.add(*id, partition.step(wall, Event::Tick));
        }
        self.bring_pauses(wall, &open, &mut draft);
        self.decide_pending(wall, !work.is_empty(), &mut draft);
        self.compare(now, &open, &mut draft);
        for delivered in work {
            self.decide_on((now, wall), delivered, &known, &mut draft);
        }
        self.serve_lines(wall, &mut draft);
        self.rounds.made += 1;
        let mut round = draft.into_round(self.options.id, self.clock.stamp(now));
        for id in open {
            if let Some(partition) = self.partition_mut(id) {
                round.seal(partition);
            }
        }
        self.write(now, round);
    }

    /// Decides on what was not delivered; `others` says whether something was.
    fn decide_pending(&mut self, wall: Millis, others: bool, draft: &mut Draft) {
        let takes_page = self.operating.pace.is_turn(others);
        let mut has_page = false;
        self.rounds.goes_on = self.pending.iter().any(|(id, _)| self.is_open(*id));
        for (id, mut event) in std::mem::take(&mut self.pending) {
            let is_page = matches!(event, Event::Page(..));
            if !self.is_open(id) || is_page && !takes_page {
                self.pending.push_back((id, event));
                continue;
            }
            self.add_untold(id, &mut event);
            if let Some(partition) = self.partition_mut(id) {
                draft.add(id, partition.step(wall, event));
                has_page |= is_page;
            }
        }
        self.operating.pace.decided(has_page);
    }

    fn decide_on(
        &mut self,
        (now, wall): (Millis, Millis),
        delivered: Delivered,
        known: &HashMap<RequestId, KnownRequest>,
        draft: &mut Draft,
    ) {
        let id = delivered.partition;
        let asks = match &delivered.work {
            Work::Pauses(items) | Work::Policies(items) => !items.is_empty(),
            _ => false,
        };
        if asks && self.is_behind(id) {
            // Whoever is answered knows that the change is in force.
            return self.put_back(vec![delivered]);
        }
        let Told::Now(delivered, in_force) = self.tell_in_force(now, delivered) else {
            return;
        };
        let delivered = self.without_others(delivered);
        let reply_to = delivered.reply_to;
        let place = self.places.get_mut(&id);
        // What belongs to a partition that was lost meanwhile comes again, to its owner.
        let Some(place) = place.filter(|place| place.subscription == delivered.subscription) else {
            return;
        };
        let Stage::Serving(partition) = &mut place.stage else {
            return;
        };
        let mut effects = Vec::with_capacity(4 * delivered.work.len());
        let mut step = |event| partition.decide(wall, event, &mut effects);
        match delivered.work {
            Work::Completions(items) => {
                for item in items {
                    step(Event::Completed(item));
                }
            }
            Work::Submits(items) => {
                for item in items {
                    step(Event::Submit {
                        known: known.get(&item.request_id).copied(),
                        submit: item,
                        reply_to: reply_to.clone(),
                    });
                }
            }
            Work::Cancels(items) => {
                for (request_id, execution_id) in items {
                    step(Event::Cancel {
                        request_id,
                        execution_id,
                        reply_to: reply_to.clone(),
                    });
                }
            }
            Work::Releases(items) => {
                for command in items {
                    step(Event::ForceRelease {
                        command: Box::new(command),
                        reply_to: reply_to.clone(),
                    });
                }
            }
            Work::Explains(items) => {
                for (request_id, execution_id) in items {
                    step(Event::Explain {
                        request_id,
                        execution_id,
                        reply_to: reply_to.clone(),
                    });
                }
            }
            // The look-up has brought the new definition already.
            Work::Changes(items) => {
                for (request_id, _) in items {
                    let told = in_force.clone();
                    effects.extend(changed(request_id, reply_to.as_ref(), told));
                }
            }
            // What was read is in force in this round; operations are read beside it.
            Work::Pauses(items) | Work::Policies(items) | Work::Operations(items) => {
                for request_id in items {
                    let told = in_force.clone();
                    effects.extend(changed(request_id, reply_to.as_ref(), told));
                }
            }
        }
        draft.add_delivery(id, delivered.id, effects);
    }

    fn write(&mut self, now: Millis, mut round: Round) {
        self.beside.take_from(now, &mut round);
        if round.is_empty() {
            let most = self.options.operation_rows;
            self.operating.pace.note_unwritten(now, most);
            return self.tell_unwritten(now, round);
        }
        self.rounds.goes_on = false;
        self.sweep.note(round.commit.executions());
        if Bug::ExplainEarly.is_planted() {
            self.tell_explanations(&mut round);
        }
        if Bug::EventEarly.is_planted() {
            let tells = round.tells.values_mut();
            let events = tells.flat_map(|tell| std::mem::take(&mut tell.events));
            self.out.push(Output::Send(Send::Events(events.collect())));
        }
        if Bug::SettleFirst.is_planted() {
            for (id, tell) in &mut round.tells {
                for (worker, key) in std::mem::take(&mut tell.settled) {
                    self.links.settle(now, *id, worker, key);
                }
            }
        }
        let call = Call::Commit(Arc::clone(&round.commit));
        self.slow.asks(now);
        self.rounds.step = Step::Committing(Box::new(round));
        self.call(Purpose::Round, call);
    }

    /// Tells what was explained in a round, which is not stored yet.
    fn tell_explanations(&mut self, round: &mut Round) {
        for tell in round.tells.values_mut() {
            let answers = std::mem::take(&mut tell.answers).into_iter();
            let (early, others) = answers.partition(|(_, answer)| answer.explanation.is_some());
            tell.answers = others;
            self.out.push(Output::Send(Send::Answers(early)));
        }
    }

    /// There is nothing in a round for the store.
    pub(super) fn tell_unwritten(&mut self, now: Millis, round: Round) {
        let decided = round.commit.decided.iter().cloned();
        self.out.extend(decided.map(Output::Noted));
        self.tell(now, round, Vec::new());
    }

    /// The store has answered the round.
    pub(super) fn round_answered(&mut self, now: Millis, reply: Reply) {
        let took = self.slow.answered(now);
        match (std::mem::take(&mut self.rounds.step), reply) {
            (Step::LookingUp(work), Reply::Known { requests, actions }) => {
                self.look_ups.answered(&work);
                if self.is_trusted(now) {
                    self.decide(now, work, &requests, actions);
                } else {
                    self.put_back(work);
                }
            }
            (Step::LookingUp(work), reply) => {
                let ends = self.look_up_failed(now, work, reply);
                if !ends.is_empty() && self.is_trusted(now) {
                    self.decide(now, ends, &[], Vec::new());
                } else {
                    self.put_back(ends);
                }
            }
            (Step::Committing(round), Reply::Committed(bodies)) => {
                let is_page = !round.commit.batch.progress.is_empty();
                let most = self.options.operation_rows;
                self.operating.pace.note(now, took, is_page, most);
                self.operating.written(&round.commit);
                let ended = round.commit.batch.ends.len();
                let changed = round.commit.executions().count();
                let most = self.options.step_items;
                self.steps.written(took, (changed, ended), most);
                self.tell(now, *round, bodies);
            }
            (Step::Committing(mut round), Reply::Fenced(lost)) => {
                self.fenced(&round, &lost);
                round.drop_partitions(&lost);
                self.write(now, *round);
            }
            (Step::Committing(round), Reply::Failed(failure)) if failure.refused => {
                self.refused(now, *round, &failure, took);
            }
            (Step::Committing(round), reply) => self.unknown(now, &round, reply),
            (Step::Idle, _) => {}
        }
    }

    /// Whether a partition is held in the epoch in which a round decided about it. An answer may come
    /// so late that the partition was lost and taken again meanwhile: then it says nothing about it.
    pub(super) fn is_current(&self, round: &Round, id: PartitionId) -> bool {
        let epoch = self.places.get(&id).map(|place| place.epoch);
        let fences = &round.commit.batch.fences;
        epoch.is_some_and(|epoch| fences.contains(&(id, epoch)))
    }

    /// Somebody else owns these, or did when the round came.
    pub(super) fn fenced(&mut self, round: &Round, lost: &[PartitionId]) {
        let current = lost.iter().filter(|id| self.is_current(round, **id));
        let lost: Vec<PartitionId> = current.copied().collect();
        self.count(Counter::Fenced);
        if !lost.is_empty() {
            self.say(Notice::Fenced(lost.clone()));
        }
        for partition in lost {
            if let Some(epoch) = self.places.get(&partition).map(|place| place.epoch) {
                self.note(partition, epoch, Fact::Fenced);
            }
            self.lose(partition);
        }
    }

    /// Memory is ahead of the store now, or not: only loading again, in a new epoch, tells.
    pub(super) fn unknown(&mut self, now: Millis, round: &Round, reply: Reply) {
        self.count(Counter::CommitUnknown);
        let partitions: Vec<PartitionId> = round.tells.keys().copied().collect();
        if let Reply::Failed(failure) = reply {
            self.say(Notice::CommitUnknown {
                partitions: partitions.clone(),
                failure,
            });
        }
        for partition in partitions {
            if self.is_kept(partition) && self.is_current(round, partition) {
                let at = now + self.chance.between(50, 500);
                self.want_new_epoch(partition, at);
            }
        }
    }

    /// What follows a commit.
    pub(super) fn tell(&mut self, now: Millis, mut round: Round, bodies: Vec<crate::stored::Body>) {
        let of_round: Vec<PartitionId> = round.tells.keys().copied().collect();
        let is_late = |id: &PartitionId| !self.is_current(&round, *id);
        for id in of_round.into_iter().filter(is_late).collect::<Vec<_>>() {
            round.tell_no_workers(id);
        }
        // The answer came within this millisecond.
        let stored_at = self.clock.at(now) + 1;
        for id in round.tells.keys() {
            if let Some(partition) = self.partition_mut(*id) {
                partition.settle_counted(stored_at);
            }
        }
        let exhausted: Vec<PartitionId> = round
            .tells
            .keys()
            .copied()
            .filter(|id| {
                self.partition(*id)
                    .is_some_and(|partition| partition.is_exhausted())
            })
            .collect();
        self.tell_round(now, round, bodies);
        for partition in exhausted {
            self.say(Notice::EpochUsedUp(partition));
            self.want_new_epoch(partition, now);
        }
    }
}

/// The answer to the change of an action, or of what operators hold.
fn changed(
    request_id: RequestId,
    reply_to: Option<&Arc<str>>,
    in_force: Result<(), Reject>,
) -> Option<Effect> {
    let answer = |reply_to: &Arc<str>| Effect::Answer {
        reply_to: Arc::clone(reply_to),
        answer: Answer {
            request_id,
            outcome: in_force.map(|()| Accepted::default()),
            explanation: None,
        },
    };
    reply_to.map(answer)
}
