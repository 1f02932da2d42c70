//! Tests of answers that come after the partition was let go and taken again.

use super::look_ups::change;
use super::*;

const ID: PartitionId = PartitionId(0);

fn refused() -> Reply {
    Reply::Failed(Failure {
        refused: true,
        words: "could not extend file: No space left on device".to_owned(),
    })
}

impl World {
    pub(super) fn worker(&mut self) -> WorkerId {
        self.worker_of(64)
    }

    pub(super) fn worker_of(&mut self, slots: u32) -> WorkerId {
        let worker = WorkerId::fresh();
        self.workers.push(WorkerEnd {
            worker,
            pool: "default".to_owned(),
            user: None,
            slots,
            renewals: 0,
            ttl: 3_000,
            ended: false,
            draining: false,
            gone: false,
            begun: None,
        });
        worker
    }

    /// Every commit waits for its answer.
    fn serving_with_slow_commits() -> Self {
        let mut world = Self::new().free();
        world.pass(5_000, true);
        world.holds_back = Some(|call| matches!(call, Call::Commit(_)));
        world
    }

    /// The only commit that is not answered.
    fn commit(&mut self) -> CallId {
        let deadline = self.now + 10_000;
        while self.held_back.is_empty() && self.now < deadline {
            self.pass(100, true);
        }
        let calls: Vec<CallId> = self.held_back.drain(..).map(|(id, _)| id).collect();
        let [call] = calls[..] else {
            panic!("one commit: {calls:?}");
        };
        call
    }

    fn reply(&mut self, call: CallId, reply: Reply) {
        self.give(VecDeque::from([Input::Answered(call, reply)]));
    }

    /// The partition is let go and comes back.
    fn lend(&mut self) {
        let now = self.now;
        self.taken.clear();
        self.owner.let_go(now, ID, None);
        let deadline = self.now + 60_000;
        while self.taken.is_empty() && self.now < deadline {
            self.pass(100, true);
        }
        self.pass(1_000, true);
        assert_eq!(self.taken.len(), 1, "it was let go");
        assert!(self.owner.partition(ID).is_some());
    }
}

/// A round was refused, and written again; the answer to that is on its way while the partition goes
/// and comes back. What is written in the new epoch is not what is answered.
#[test]
fn an_answer_of_an_earlier_epoch_is_not_taken_for_one_of_this_one() {
    let mut world = World::serving_with_slow_commits();
    world.deliver(1, 0, change("t.good"));
    let first = world.commit();
    world.reply(first, refused());
    let late = world.commit();
    let epoch = world.owner.places[&ID].epoch;
    world.lend();
    world.deliver(2, 0, change("t.good"));
    let second = world.commit();
    world.reply(second, refused());
    let again = world.commit();
    for reply in [refused(), Reply::Fenced(vec![ID]), Reply::Committed(vec![])] {
        world
            .owner
            .calls
            .insert(late, (Purpose::Rewrite(ID, epoch), "commit"));
        world.reply(late, reply);
        assert!(!world.is_acked(2), "{:?}", world.acked);
    }
    assert!(world.owner.partition(ID).is_some(), "it is kept");
    world.reply(again, Reply::Committed(vec![]));
    assert!(world.is_acked(2), "{:?}", world.acked);
}

/// A store that needs a second for each execution that ends, and whose statements have ten: a commit that
/// would take longer is refused then.
fn pass_slowly(world: &mut World, time: Millis) {
    let (until, mut late) = (world.now + time, Vec::new());
    while world.now < until {
        let mut inputs = VecDeque::from([Input::Timer]);
        late.retain(
            |(at, id, commit): &(Millis, CallId, Arc<crate::round::Commit>)| {
                if *at > world.now {
                    return true;
                }
                let ends = &commit.batch.ends;
                let reply = match ends.len() > 10 {
                    true => Reply::Failed(Failure {
                        refused: true,
                        words: "canceling statement due to statement timeout".to_owned(),
                    }),
                    false => {
                        let is_there = |id| !ends.iter().any(|end| end.id == id);
                        world.slots.retain(|(slot, _)| is_there(slot.id));
                        Reply::Committed(Vec::new())
                    }
                };
                inputs.push_back(Input::Answered(*id, reply));
                false
            },
        );
        while let Some(input) = inputs.pop_front() {
            for output in world.owner.step(world.now, input) {
                match output {
                    Output::Call(id, Call::Commit(commit)) => {
                        let takes = 1_000 * commit.batch.ends.len() as Millis;
                        late.push((world.now + takes.clamp(1, 10_000), id, commit));
                    }
                    Output::Call(id, call) => {
                        inputs.push_back(Input::Answered(id, world.answer(call)));
                    }
                    Output::Unsubscribe(id) => inputs.push_back(Input::Unsubscribed(id)),
                    _ => {}
                }
            }
        }
        world.renew();
        let next = world.owner.wake_at(world.now).min(world.now + 100);
        world.now = next.max(world.now + 1);
    }
}

#[test]
fn what_is_too_much_for_one_commit_is_ended_in_several() {
    let mut world = World::new().free();
    let worker = world.worker();
    let waiting = |place| {
        let mut slot = slot(place, worker);
        (slot.status, slot.worker, slot.attempt) = (Status::Queued, None, Attempt(0));
        (slot, true)
    };
    // As many run as may; the others have waited too long at the same moment.
    world.slots = (1..=3).map(|place| (slot(place, worker), true)).collect();
    world.slots.extend((4..=103).map(waiting));
    pass_slowly(&mut world, 240_000);
    assert_eq!(world.slots.len(), 3, "all others have expired");
    let epochs = world.leases[0].epoch.0;
    assert!(epochs <= 5, "it was loaded again each time: {epochs}");
}
