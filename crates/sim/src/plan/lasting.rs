//! Draws what lasts, what operators do, and how large a run is: from a stream of chance of its
//! own, so that the rest of a plan stays what it is.

use attune_core::Priority;

use super::{Fault, Op, Plan, Planned, Reads, Time};
use crate::rng::Rng;

/// How many submissions the large runs have: more than most bounds of the owner, and more than
/// all of them.
const MANY: usize = 500;
const VERY_MANY: usize = 1_100;
/// How many items one round of an owner takes, in small runs and in large ones.
const SMALL_ROUND: usize = 8;
const LARGE_ROUND: usize = 64;

impl Plan {
    pub(super) fn add_lasting(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x1a57_1a57_1a57_1a57);
        let rng = &mut rng;
        self.round_items = SMALL_ROUND;
        if rng.chance(300) {
            self.pools = 2;
            for action in &mut self.actions {
                action.pool = rng.index(self.pools);
            }
        }
        let size = rng.index(1_000);
        if size < 10 {
            self.submit_many(if size < 1 { VERY_MANY } else { MANY }, rng);
        }
        if rng.chance(250) {
            self.add_releases(rng);
        }
        if rng.chance(150) {
            self.add_limits(rng);
        }
        if rng.chance(350) {
            for _ in 0..=rng.index(2) {
                self.add_fault(rng);
            }
        }
        self.ops.sort_by_key(|op| (op.at, op.id));
        self.faults.sort_by_key(|fault| (fault.at, fault.id));
    }

    fn submit_many(&mut self, many: usize, rng: &mut Rng) {
        self.round_items = LARGE_ROUND;
        // One by one so many would take longer than anybody is to wait.
        self.step_items = self.step_items.max(50);
        let last = self.ops.iter().map(|op| op.at).max().unwrap_or(1_000);
        for action in &mut self.actions {
            action.run_ms = action.run_ms.min(100);
            // Otherwise most of them would be refused.
            action.max_length = None;
        }
        self.worker_slots.fill(6);
        for _ in self.ops.len()..many {
            let what = Op::Submit {
                client: rng.index(3),
                action: rng.index(self.actions.len()),
                priority: rng.pick(&Priority::ALL),
                delay: rng.chance(150).then(|| rng.between(1, 20_000)),
                asks: rng.chance(300),
            };
            let at = rng.between(0, last);
            self.ask(at, what);
        }
    }

    /// Operators take slots back, of whatever holds one then.
    fn add_releases(&mut self, rng: &mut Rng) {
        for _ in 0..=rng.index(4) {
            let of = rng.index(16);
            let at = rng.between(500, self.heal_at);
            self.ask(at, Op::ForceRelease { of });
        }
    }

    /// Somebody turns a limit down and up again while executions run.
    fn add_limits(&mut self, rng: &mut Rng) {
        let action = rng.index(self.actions.len());
        let mut at = rng.between(200, self.heal_at / 2);
        for limit in [Some(1), Some(4), Some(2), None, Some(1), Some(3)] {
            self.ask(at, Op::Limit { action, limit });
            at += rng.between(20, 3_000);
        }
    }

    pub(super) fn ask(&mut self, at: Time, what: Op) {
        let id = self.ops.iter().map(|op| op.id + 1).max().unwrap_or(0);
        self.ops.push(Planned { at, id, what });
    }

    fn add_fault(&mut self, rng: &mut Rng) {
        let pool = rng.index(self.pools);
        let long = rng.between(2_000, 20_000);
        let what = match rng.index(26) {
            0 => Fault::RefuseLong {
                refuse: rng.between(60_000, 180_000),
            },
            n @ 1..=6 => Fault::FailReads {
                reads: Reads::ALL[(n - 1) % Reads::ALL.len()],
                fail: long,
            },
            7 | 8 => Fault::FullPool { pool, full: long },
            9 => Fault::DeadPool { pool, dead: long },
            10 => Fault::LostRoute { pool, lost: long },
            11 => Fault::TooLarge,
            12 => Fault::Invalid,
            13 | 14 => Fault::WithoutBus {
                owner: rng.index(self.owner_skews.len()),
                lost: rng.between(1_000, 40_000),
            },
            18 | 19 => Fault::Unreadable {
                action: rng.index(self.actions.len()),
                lasts: long,
            },
            23..=25 => Fault::BrokenLease {
                action: rng.index(self.actions.len()),
                lasts: rng.between(5_000, 60_000),
                after: rng.pick(&[0, 0, 1_200]),
            },
            20..=22 => return self.refuse_beside(long, rng),
            15 => Fault::WithoutStore {
                owner: rng.index(self.owner_skews.len()),
                lost: rng.between(1_000, 30_000),
            },
            _ if rng.chance(333) => return self.swing_a_clock(rng),
            _ => {
                let by = rng.pick(&[-7_200_000, 7_200_000]);
                return self.step_a_clock(by, long, rng);
            }
        };
        let at = rng.between(200, self.heal_at);
        self.plan_fault(at, what);
    }

    /// Meanwhile an operator takes slots back, and requests that nobody waits for come again with
    /// other bodies.
    fn refuse_beside(&mut self, refuse: Time, rng: &mut Rng) {
        let begins = rng.between(200, self.heal_at);
        self.plan_fault(begins, Fault::RefuseBeside { refuse });
        let submits = self.ops.iter().filter(|op| op.at < begins);
        let submits = submits.filter(|op| matches!(op.what, Op::Submit { asks: false, .. }));
        let submits: Vec<usize> = submits.map(|op| op.id).collect();
        for _ in 0..=rng.index(3) {
            let at = begins + rng.between(0, refuse / 2);
            let again = rng.chance(500) && !submits.is_empty();
            let what = if again {
                let of = rng.pick(&submits);
                Op::Repeat { of, differs: true }
            } else {
                let of = rng.index(16);
                Op::ForceRelease { of }
            };
            self.ask(at, what);
        }
    }

    /// The store's clock goes ahead by what is followed and is set right, a few times.
    fn swing_a_clock(&mut self, rng: &mut Rng) {
        let at = rng.between(200, self.heal_at);
        let (by, lasts) = (rng.between(1_000, 4_500), rng.between(1_000, 3_000));
        for swing in 0..rng.between(1, 12) {
            let what = Fault::StepStoreClock { by, lasts };
            self.plan_fault(at + swing * 2 * lasts, what);
        }
    }

    /// One clock is wrong for a while, in all of a run the same one: with two wrong clocks nobody
    /// could tell the time. Often somebody starts meanwhile.
    fn step_a_clock(&mut self, by: Time, lasts: Time, rng: &mut Rng) {
        let owners = self.owner_skews.len();
        let owner = Rng::new(self.seed ^ 0xc10c_c10c).index(owners * 2);
        let what = if owner < owners {
            Fault::StepOwnerClock { owner, by, lasts }
        } else {
            Fault::StepStoreClock { by, lasts }
        };
        let at = rng.between(200, self.heal_at);
        if rng.chance(500) {
            let starts = Fault::CrashOwner {
                owner: owner % owners,
                down: rng.between(100, 2_000),
            };
            self.plan_fault(at + rng.between(0, lasts), starts);
        }
        self.plan_fault(at, what);
    }

    fn plan_fault(&mut self, at: Time, what: Fault) {
        // It ends before everything is healed: what follows from its end is part of the run.
        self.heal_at = self.heal_at.max(at + what.lasts() + 1_000);
        let id = self.faults.iter().map(|fault| fault.id + 1).max();
        let id = id.unwrap_or(0);
        self.faults.push(Planned { at, id, what });
    }
}
