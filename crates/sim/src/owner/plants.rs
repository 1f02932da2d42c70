//! Bugs that are planted around an owner, to see that they are found.

use super::*;

impl World {
    /// Tells what is granted before it is stored.
    pub(super) fn tell_first(&mut self, commit: &Commit) {
        let changes = commit.batch.changes.iter();
        let granted = changes.filter(|change| change.grant_no.is_some());
        let granted = granted.map(|change| (change.id, change.attempt));
        let new = commit.batch.inserts.iter();
        let new = new.filter(|new| new.status == Status::Requested);
        let keys: Vec<_> = granted
            .chain(new.map(|new| (new.id, new.attempt)))
            .collect();
        for key in keys {
            self.oracle.dispatched(self.now, &self.store, key);
        }
    }

    /// The end of an earlier attempt is taken for that of the one that holds the slot now.
    pub(super) fn as_taken(&self, mut work: Work) -> Work {
        if let Work::Completions(completions) = &mut work
            && self.has(Plant::StaleResult)
        {
            for completion in completions {
                let row = self.store.active.get(&completion.execution_id);
                if let Some(row) = row.filter(|row| row.status.holds_slot()) {
                    completion.attempt = completion.attempt.max(row.attempt);
                }
            }
        }
        work
    }

    /// A counter goes down with every completion: after a stale one it is one slot short of the
    /// truth, as if the limit were one higher.
    pub(super) fn believe_in_a_free_slot(&mut self, o: usize) {
        if !self.has(Plant::Counter) {
            return;
        }
        let Some(report) = self.completions.last() else {
            return;
        };
        let (action_id, party) = (report.action_id, self.owner_party(o));
        let stored = self.store.actions.iter();
        let Some(action) = stored.clone().find(|action| action.id == action_id) else {
            return;
        };
        *self.extra.entry(action_id).or_default() += 1;
        let request_id = RequestId(uuid::Uuid::nil());
        let name = action.spec.action_ref.as_str().to_owned();
        let (partition, work) = (action.partition, Work::Changes(vec![(request_id, name)]));
        let subscriptions = self.owners[o].subscriptions.iter();
        let mut subscriptions = subscriptions.filter(|(_, of)| of.partition == partition);
        let Some(subscription) = subscriptions.next().map(|(id, _)| *id) else {
            return;
        };
        let delivered = Delivered {
            id: DeliveryId(0),
            subscription,
            partition,
            bytes: 0,
            reply_to: None,
            work,
        };
        self.push(self.now, Ev::To(party, Word::Bring(Box::new(delivered))));
    }

    /// What was received in an earlier epoch goes before what the broker gives again.
    pub(super) fn go_on_with_the_old_inbox(
        &mut self,
        o: usize,
        subscription: SubscriptionId,
        partition: PartitionId,
    ) {
        let party = self.owner_party(o);
        let kept = self.owners[o].stale.remove(&partition).unwrap_or_default();
        // The first was decided on in a round that was lost.
        for body in kept.into_values().skip(1) {
            if let Some(delivered) = self.receive(o, subscription, partition, &body, (0, 0)) {
                self.push(self.now, Ev::To(party, Word::Bring(Box::new(delivered))));
            }
        }
    }
}
