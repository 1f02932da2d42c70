//! What the core decides, how it is judged, written and told.

use super::*;

impl World {
    pub(super) fn decide(
        &mut self,
        o: usize,
        inbound: Inbound,
        draft: &mut Draft,
        places: &mut Vec<(ExecutionId, RequestId, u64)>,
    ) {
        let Inbound {
            partition,
            epoch,
            subscription,
            place,
            body,
        } = inbound;
        let Some(owned) = self.owners[o].owned.get(&partition) else {
            return;
        };
        if owned.core.epoch() != epoch && !self.has(Plant::StaleInbox) {
            return;
        }
        let event = match body {
            Body::Submit(submit) => Some(Event::Submit {
                request_id: submit.request_id,
                submission: submit.submission.clone(),
                on_reject: submit.on_reject,
                reply_to: submit.reply_to.clone(),
            }),
            Body::Cancel(request_id, execution_id, reply_to) => Some(Event::Cancel {
                request_id,
                execution_id,
                reply_to: Some(reply_to),
            }),
            Body::Completed(completion) => Some(Event::Completed(Box::new((*completion).clone()))),
            Body::Changed(request_id, _, reply_to) => {
                draft.add(partition, vec![changed(request_id, reply_to)]);
                None
            }
            Body::Request(..) => None,
        };
        if let Some(event) = event {
            let inserted = self.step(o, partition, event, true, draft);
            places.extend(inserted.map(|(id, request)| (id, request, place)));
        }
        let tag = DeliveryTag {
            generation: subscription,
            number: place,
        };
        draft.add_ack(partition, &self.owners[o].settler, tag);
    }

    /// Lets the core decide, and judges it. Gives the execution that was accepted, if one was.
    pub(super) fn step(
        &mut self,
        o: usize,
        partition: PartitionId,
        event: Event,
        settle: bool,
        draft: &mut Draft,
    ) -> Option<(ExecutionId, RequestId)> {
        let now = self.wall(o);
        let plant = self.plan.plant;
        let owned = self.owners[o].owned.get_mut(&partition)?;
        let epoch = owned.core.epoch();
        let said = reported(&event);
        let asked = match &event {
            Event::Submit { request_id, .. } => Some(*request_id),
            _ => None,
        };
        let is_tick = matches!(event, Event::Tick);
        let shadow = self.shadows.entry((partition, epoch)).or_default();
        let actions = match &event {
            Event::Recover { actions, .. } => actions.as_slice(),
            Event::ActionKnown(action) => std::slice::from_ref(action),
            _ => &[],
        };
        for action in actions {
            let policy = &action.spec.policy;
            let seconds = policy
                .queue
                .timeout_seconds
                .unwrap_or(QUEUE_TIMEOUT_SECONDS);
            let bounds = (policy.concurrency.limit, i64::from(seconds) * 1000);
            shadow.bounds.insert(action.id, bounds);
        }
        if let Event::Reconcile { slots, .. } = &event
            && shadow.mend(slots)
            && self.store.leases[usize::from(partition.0)].epoch == epoch.0
        {
            let words =
                format!("the holders of partition {partition} in memory are not the stored ones");
            self.oracle
                .blame(self.now, Violation::of(Rule::Stored, words));
        }
        let counted = match (&event, plant) {
            (Event::Completed(completion), Some(Plant::Counter)) => Some(completion.action_id),
            _ => None,
        };
        let mut effects = owned.core.step(now, event);
        let is_stale = |effect: &Effect| matches!(effect, Effect::Count(Counter::StaleCompletion));
        if let Some(action_id) = counted.filter(|_| effects.iter().any(is_stale)) {
            // A counter goes down with every completion: it is one slot short of the truth.
            *owned.extra.entry(action_id).or_default() += 1;
            let extra = owned.extra[&action_id];
            let stored = self
                .store
                .actions
                .iter()
                .find(|action| action.id == action_id);
            if let Some(mut action) = stored.cloned() {
                let limit = &mut action.spec.policy.concurrency.limit;
                *limit = limit.map(|limit| limit + extra);
                effects.extend(owned.core.step(now, Event::ActionKnown(action)));
            }
        }
        let mut found = Vec::new();
        shadow.judge(now, said, &effects, &mut found);
        if settle && plant != Some(Plant::Counter) {
            shadow.settle(now, &mut found);
        }
        if is_tick {
            shadow.pass(now, &mut found);
        }
        let found = found.into_iter().map(|violation| (partition, violation));
        self.owners[o].found.extend(found);
        let mut inserted = None;
        for effect in &effects {
            match effect {
                Effect::Insert(new) => {
                    inserted = Some((new.id, new.request_id));
                    self.note(Note::Accepted(new.id));
                }
                Effect::Update(update) => match update.status {
                    Some(Status::Requested) => self.note(Note::Granted(update.id, update.attempt)),
                    Some(_) => self.note(Note::Revoked(update.id, update.attempt)),
                    None => {}
                },
                Effect::End(end) => self.note(Note::Ended(end.id, end.outcome.status)),
                Effect::Dispatch(dispatch) if plant == Some(Plant::TellFirst) => {
                    self.dispatch(dispatch.execution_id, dispatch.attempt, dispatch.action.id);
                }
                Effect::Count(Counter::Rejected) => {
                    if let Some(request) = asked {
                        self.oracle.refuse(request);
                    }
                }
                _ => {}
            }
        }
        draft.add(partition, effects);
        inserted
    }

    pub(super) fn write(
        &mut self,
        o: usize,
        draft: Draft,
        places: Vec<(ExecutionId, RequestId, u64)>,
    ) {
        let round = draft.into_round(self.owners[o].id);
        self.numbers += 1;
        let number = self.numbers;
        if !round.is_empty() {
            let party = self.owner_party(o);
            self.note(Note::Decided(party, number));
        }
        let found = std::mem::take(&mut self.owners[o].found);
        self.owners[o].stage = Stage::Write(Box::new(Writing {
            round,
            number,
            places,
            found,
        }));
        self.issue(o);
    }

    /// As the journal does.
    pub(super) fn add_fences(&mut self, o: usize) {
        let owner = &mut self.owners[o];
        let Stage::Write(writing) = &mut owner.stage else {
            return;
        };
        let owned = &owner.owned;
        let find = |partition| owned.get(&partition).map(|owned| &owned.core);
        writing.round.fence(find);
    }

    pub(super) fn written(&mut self, o: usize, round: Round) {
        let party = self.owner_party(o);
        let (tell, _) = round.into_tell();
        for counter in &tell.counts {
            let seen = &mut self.seen;
            match counter {
                Counter::StaleCompletion | Counter::Repeated => seen.duplicates_dropped += 1,
                Counter::Revoked => seen.revokes += 1,
                Counter::Redispatched => seen.redispatches += 1,
                Counter::Cancelled => seen.cancelled += 1,
                Counter::Expired => seen.expired += 1,
                Counter::Abandoned => seen.abandoned += 1,
                Counter::SlotLeakMended | Counter::SlotMissingMended => seen.mended += 1,
                _ => {}
            }
        }
        self.soon(Ev::To(party, Word::Tell(Box::new(tell))));
    }

    pub(super) fn publish_round(&mut self, tell: Tell) {
        for dispatch in tell.dispatches.iter().chain(&tell.redispatches) {
            self.dispatch(dispatch.execution_id, dispatch.attempt, dispatch.action.id);
        }
        for (reply_to, answer) in tell.answers {
            if let AnswerOutcome::Accepted(Accepted {
                execution_id: Some(id),
                ..
            }) = &answer.outcome
            {
                self.told(&reply_to, *id);
            }
            let Ok(ask) = reply_to.parse() else { continue };
            if !self.rng.chance(self.noise.lost) {
                self.soon(Ev::Answer(ask, answer.outcome));
            }
        }
        for key in tell.cancels {
            for worker in 0..self.workers.len() {
                let party = Party::Worker(worker, self.workers[worker].life());
                if !self.rng.chance(self.noise.lost) {
                    self.soon(Ev::To(party, Word::CancelRun(key)));
                }
            }
        }
        for (_, tags) in tell.acks {
            for tag in tags {
                self.soon(Ev::Ack(tag.generation, tag.number));
            }
        }
    }

    pub(super) fn dispatch(
        &mut self,
        id: ExecutionId,
        attempt: attune_core::Attempt,
        action: ActionId,
    ) {
        self.note(Note::Dispatched(id, attempt));
        self.oracle.dispatched(self.now, &self.store, (id, attempt));
        self.publish(Name::Requested, &Body::Request(id, attempt, action));
    }
}

/// The answer to a change, which the look-up has brought already.
fn changed(request_id: RequestId, reply_to: Arc<str>) -> Effect {
    let accepted = Accepted {
        execution_id: None,
        status: None,
        position: None,
        repeated: false,
    };
    let outcome = AnswerOutcome::Accepted(accepted);
    let answer = Answer {
        request_id,
        outcome,
    };
    Effect::Answer { reply_to, answer }
}
