//! Draws a plan from its seed.

use attune_core::policy::{Backoff, Events, Factor, Retry, TryEnd, TryEnds};
use attune_core::{
    OnWorkerLost, OperationFilter, OperationKind, OrderRule, PauseMode, PauseTarget, Priority,
    Status,
};

use super::{ActionShape, Fault, Noise, Op, Plan, Planned, Plant};
use crate::groups::{Grouping, Ranks};
use crate::overflow::Overflow;
use crate::policies::Documents;
use crate::rates::Starts;
use crate::rng::Rng;
use crate::routing::RoutingPlan;
use crate::shares::Shares;

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64, plant: Option<Plant>) -> Self {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let partitions = rng.pick(&[1, 1, 1, 1, 2, 2, 3, 12]);
        let span = rng.between(5_000, 25_000);
        let actions: Vec<ActionShape> = (0..rng.between(1, 3)).map(|n| action(n, rng)).collect();
        let owners = rng.pick(&[2, 2, 3]);
        let workers = rng.between(2, 4);
        let mut ops = Vec::new();
        let submits = usize::try_from(rng.between(16, 48)).unwrap_or(16);
        // Some runs come in a burst, so that queues are long; others drip.
        let rush = rng.pick(&[span, span, span / 4, 200]);
        for id in 0..submits {
            let what = Op::Submit {
                client: rng.index(3),
                action: rng.index(actions.len()),
                priority: if rng.chance(600) {
                    Priority::Normal
                } else {
                    rng.pick(&Priority::ALL)
                },
                delay: rng.chance(100).then(|| rng.between(1, 6_000)),
                asks: rng.chance(700),
            };
            let at = rng.between(0, rush);
            ops.push(Planned { at, id, what });
        }
        for id in submits..submits + rng.index(10) {
            let of = rng.index(submits);
            let what = match rng.index(5) {
                0 | 1 => Op::Repeat {
                    of,
                    differs: rng.chance(300),
                },
                2 | 3 => Op::Cancel { of },
                _ => Op::Limit {
                    action: rng.index(actions.len()),
                    limit: limit(rng),
                },
            };
            let at = rng.between(100, span);
            ops.push(Planned { at, id, what });
        }
        ops.sort_by_key(|op| (op.at, op.id));
        let mut faults: Vec<Planned<Fault>> = (0..rng.index(9))
            .map(|id| Planned {
                at: rng.between(200, span),
                id,
                what: fault(rng, owners, usize::try_from(workers).unwrap_or(2)),
            })
            .collect();
        faults.sort_by_key(|fault| (fault.at, fault.id));
        let mut plan = Self {
            seed,
            partitions,
            pools: 1,
            round_items: 0,
            step_items: step_items(seed),
            lane_length: 0,
            owner_skews: (0..owners).map(|_| rng.between(-200, 200)).collect(),
            worker_slots: (0..workers).map(|_| 1 + rng.index(3)).collect(),
            actions,
            noise: noise(rng),
            room: rng.chance(200).then(|| 1 + rng.index(8)),
            says_words: false,
            says_policies: false,
            ops,
            faults,
            routing: RoutingPlan::default(),
            vouches: false,
            heal_at: span + rng.between(500, 6_000),
            plant,
        };
        plan.add_lasting();
        plan.add_orders();
        plan.add_pauses();
        plan.add_groups();
        plan.add_retries();
        plan.add_events();
        plan.add_overflows();
        plan.add_rates();
        plan.add_shares();
        plan.add_questions(submits);
        plan.add_operations();
        plan.add_policies();
        plan.add_lanes();
        plan.add_forgeries();
        plan.routing = RoutingPlan::of(seed, partitions, plan.heal_at);
        plan
    }

    /// By what executions stand in line, from a stream of chance of its own.
    fn add_orders(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x0bde_0bde_0bde_0bde);
        let rng = &mut rng;
        if rng.chance(500) {
            return;
        }
        for action in &mut self.actions {
            action.order = order(rng);
        }
        // Most say nothing of priorities otherwise, and then there is little to age.
        for planned in &mut self.ops {
            if let Op::Submit { priority, .. } = &mut planned.what {
                *priority = rng.pick(&Priority::ALL);
            }
        }
        if rng.chance(400) {
            let mut at = rng.between(200, self.heal_at / 2);
            for _ in 0..=rng.index(4) {
                let action = rng.index(self.actions.len());
                self.ask(
                    at,
                    Op::Order {
                        action,
                        order: order(rng),
                    },
                );
                at += rng.between(20, 4_000);
            }
            self.ops.sort_by_key(|op| (op.at, op.id));
        }
    }
}

impl Plan {
    /// What operators hold, from a stream of chance of its own. What is still held when everything is
    /// made whole is resumed then.
    fn add_pauses(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x9a05_e9a0_5e9a_05e9);
        let rng = &mut rng;
        if rng.chance(600) {
            return;
        }
        let mut targets = vec![PauseTarget::All, PauseTarget::Pack("sim".to_owned())];
        let names = self.actions.iter().map(|action| action.name.parse());
        targets.extend(names.flatten().map(PauseTarget::Action));
        let mut at = rng.between(50, self.heal_at / 2);
        for _ in 0..=rng.index(6) {
            let target = targets[rng.index(targets.len())].clone();
            let mode = match rng.index(5) {
                0 => Some(PauseMode::Drain),
                1 | 2 => Some(PauseMode::Pause),
                _ => None,
            };
            self.ask(at, Op::Pause { target, mode });
            at += rng.between(20, 6_000);
        }
        // What waits long enough for that would expire, if a pause counted.
        for action in &mut self.actions {
            action.timeout_seconds = rng.chance(500).then_some(4).or(action.timeout_seconds);
        }
        self.ops.sort_by_key(|op| (op.at, op.id));
    }

    /// Policy documents, likewise.
    fn add_policies(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0xd0c5_d0c5_d0c5_d0c5);
        let rng = &mut rng;
        if rng.chance(600) {
            return;
        }
        (self.says_words, self.says_policies) = (true, true);
        let mut at = rng.between(0, self.heal_at / 2);
        for _ in 0..=rng.index(5) {
            let documents = Documents::draw(rng);
            self.ask(at, Op::Policies { documents });
            at += rng.between(20, 4_000);
        }
        self.ops.sort_by_key(|op| (op.at, op.id));
    }

    /// By what executions are grouped, likewise.
    fn add_groups(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x6e0f_6e0f_6e0f_6e0f);
        let rng = &mut rng;
        if rng.chance(500) {
            return;
        }
        self.says_words = true;
        for action in &mut self.actions {
            action.grouping = Grouping::draw(rng, action.limit);
            action.ranks = Ranks::draw(rng);
        }
        if rng.chance(500) {
            let mut at = rng.between(200, self.heal_at / 2);
            for _ in 0..=rng.index(4) {
                let action = rng.index(self.actions.len());
                let grouping = Grouping::draw(rng, self.actions[action].limit);
                self.ask(at, Op::Group { action, grouping });
                at += rng.between(20, 4_000);
            }
            self.ops.sort_by_key(|op| (op.at, op.id));
        }
    }

    /// How often executions start, likewise. Of a large run it would take for ever.
    fn add_rates(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x7a7e_7a7e_7a7e_7a7e);
        let rng = &mut rng;
        if rng.chance(600) || self.ops.len() > 100 {
            return;
        }
        self.says_words = true;
        for action in &mut self.actions {
            action.starts = Starts::draw(rng);
        }
    }

    /// By what slots are shared, likewise.
    fn add_shares(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x5a4e_5a4e_5a4e_5a4e);
        let rng = &mut rng;
        if rng.chance(500) {
            return;
        }
        self.says_words = true;
        for action in &mut self.actions {
            action.grouping.0.shares = Shares::draw(rng);
            // A higher limit has room for more than one each.
            action.limit = action.limit.map(|limit| limit + rng.pick(&[0, 0, 2, 4]));
        }
        for planned in &mut self.ops {
            if let Op::Group { grouping, .. } = &mut planned.what {
                grouping.0.shares = Shares::draw(rng);
            }
        }
    }

    /// What becomes of newcomers for whom there is no room, from a stream of chance of its own.
    fn add_overflows(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x0f10_0f10_0f10_0f10);
        let rng = &mut rng;
        if rng.chance(600) {
            return;
        }
        self.says_words = true;
        for action in &mut self.actions {
            action.overflow = Overflow::draw(rng);
            // Where many may wait nothing is ever full.
            if rng.chance(500) {
                action.max_length = Some(rng.pick(&[1, 2, 3, 6]));
            }
        }
        if rng.chance(500) {
            let mut at = rng.between(200, self.heal_at / 2);
            for _ in 0..=rng.index(4) {
                let action = rng.index(self.actions.len());
                let overflow = Overflow::draw(rng);
                self.ask(at, Op::Overflow { action, overflow });
                at += rng.between(20, 4_000);
            }
            self.ops.sort_by_key(|op| (op.at, op.id));
        }
    }

    /// Bulk operations, from a stream of chance of their own.
    fn add_operations(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x0be7_a7e0_0be7_a7e0);
        let rng = &mut rng;
        if rng.chance(500) {
            return;
        }
        let mut at = rng.between(20, self.heal_at / 2);
        for _ in 0..=rng.index(5) {
            let kind = match rng.index(10) {
                0 => OperationKind::Clear,
                1 | 2 => OperationKind::Cancel {
                    include_running: rng.chance(400),
                },
                3..=6 => OperationKind::Reprioritise {
                    priority: rng.pick(&Priority::ALL),
                },
                _ => OperationKind::MoveToFront,
            };
            let filter = self.filter(rng, kind);
            self.ask(at, Op::Operate { kind, filter });
            at += rng.between(20, 5_000);
        }
        self.ops.sort_by_key(|op| (op.at, op.id));
    }

    fn filter(&self, rng: &mut Rng, kind: OperationKind) -> OperationFilter {
        let mut filter = OperationFilter::default();
        let action = rng.index(self.actions.len());
        match rng.index(3) {
            0 => filter.action = self.actions[action].name.parse().ok(),
            1 => filter.pack = Some("sim".to_owned()),
            _ => {}
        }
        if kind != OperationKind::Clear {
            filter.priority = rng.chance(250).then(|| rng.pick(&Priority::ALL));
            let (user, label) = (rng.between(1, 3), rng.between(1, 2));
            if self.says_words && rng.chance(350) {
                filter.user = Some(format!("user{user}"));
            }
            if self.says_words && rng.chance(350) {
                filter.labels.insert("g".to_owned(), label.to_string());
            }
        }
        filter.all = filter == OperationFilter::default();
        filter
    }

    /// Questions why something does not run yet, likewise.
    fn add_questions(&mut self, submits: usize) {
        let mut rng = Rng::new(self.seed ^ 0xe4a1_e4a1_e4a1_e4a1);
        let rng = &mut rng;
        if rng.chance(500) {
            return;
        }
        for _ in 0..=rng.index(8) {
            let of = rng.index(submits);
            let at = rng.between(50, self.heal_at);
            self.ask(at, Op::Explain { of });
        }
        self.ops.sort_by_key(|op| (op.at, op.id));
    }

    /// How many are granted ahead of their slots, likewise; and in some runs one action has so many short ones that
    /// some are.
    fn add_lanes(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x1a9e_1a9e_1a9e_1a9e);
        let rng = &mut rng;
        self.lane_length = rng.pick(&[0, 1, 3, 256, 256]);
        if self.lane_length == 0 || rng.chance(500) || self.ops.len() > 100 {
            return;
        }
        let shape = &mut self.actions[0];
        (shape.limit, shape.run_ms) = (Some(rng.pick(&[1, 1, 2])), rng.pick(&[4, 20, 100]));
        (shape.max_length, shape.on_worker_lost) = (None, OnWorkerLost::Retry);
        // What is more than a limit and an order is granted one by one.
        if rng.chance(800) {
            (shape.grouping, shape.overflow) = Default::default();
            (shape.starts, shape.retry) = (Starts::default(), None);
        }
        let rush = rng.pick(&[50, 400, 3_000]);
        for planned in &mut self.ops {
            if let Op::Submit {
                action,
                delay,
                priority,
                ..
            } = &mut planned.what
            {
                *action = 0;
                *delay = delay.filter(|_| rng.chance(300));
                if rng.chance(700) {
                    *priority = Priority::Normal;
                }
                planned.at = planned.at.min(rng.between(0, rush));
            }
        }
        for slots in &mut self.worker_slots {
            *slots = (*slots).max(2);
        }
        self.ops.sort_by_key(|op| (op.at, op.id));
    }

    /// Of what it is told what happens, from a stream of chance of its own.
    fn add_events(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x0e7e_0e7e_0e7e_0e7e);
        for action in &mut self.actions {
            if rng.chance(500) {
                action.events = Events::ALL;
            }
        }
    }

    /// What is tried again, from a stream of chance of its own.
    fn add_retries(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x4e74_4e74_4e74_4e74);
        let rng = &mut rng;
        if rng.chance(500) {
            return;
        }
        for action in &mut self.actions {
            if rng.chance(200) {
                continue;
            }
            action.fails = Some(rng.pick(&[100, 300, 600]));
            action.retry = Some(retry(rng));
        }
    }
}

fn retry(rng: &mut Rng) -> Retry {
    let ends = [TryEnd::Failed, TryEnd::TimedOut, TryEnd::WorkerLost];
    let some: TryEnds = ends.into_iter().filter(|_| rng.chance(800)).collect();
    let initial_ms = rng.pick(&[1, 20, 300, 1_500]);
    let jitter = [0.0, 0.2, 1.0];
    let backoff = Backoff {
        initial_ms,
        factor: Factor([1.0, 1.5, 3.0][rng.index(3)]),
        max_ms: initial_ms.max(rng.pick(&[100, 2_000, 5_000])),
        jitter: Factor(jitter[rng.index(3)]),
    };
    Retry {
        max_attempts: rng.chance(800).then(|| rng.pick(&[1, 2, 3, 5])),
        on: rng.chance(700).then_some(some),
        backoff,
        hold_slot: rng.chance(300),
    }
}

/// Of a small step much is left for the next one. Drawn from a stream of chance of its own.
fn step_items(seed: u64) -> usize {
    Rng::new(seed ^ 0x57e9_57e9_57e9_57e9).pick(&[1, 2, 5, 1_000, 1_000])
}

/// With steps of about as long as executions wait.
fn order(rng: &mut Rng) -> OrderRule {
    match rng.index(5) {
        0 => OrderRule::Priority,
        1 => OrderRule::Fifo,
        _ => OrderRule::Ageing {
            step: 1_000 * rng.pick(&[1, 2, 3, 4, 5, 6, 7, 8]),
        },
    }
}

fn limit(rng: &mut Rng) -> Option<u32> {
    rng.pick(&[Some(1), Some(1), Some(2), Some(3), Some(5), None])
}

fn action(n: i64, rng: &mut Rng) -> ActionShape {
    ActionShape {
        name: format!("sim.a{n}"),
        pool: 0,
        limit: limit(rng),
        max_length: rng.chance(150).then_some(5),
        timeout_seconds: rng.chance(150).then_some(8),
        order: OrderRule::Priority,
        grouping: Default::default(),
        starts: Starts::default(),
        ranks: Ranks::default(),
        overflow: Overflow::default(),
        on_worker_lost: if rng.chance(200) {
            OnWorkerLost::Fail
        } else {
            OnWorkerLost::Retry
        },
        max_attempts: u32::try_from(rng.between(2, 5)).unwrap_or(3),
        retry: None,
        events: Events::NONE,
        fails: None,
        run_ms: rng.pick(&[10, 300, 300, 1_000, 3_000]),
    }
}

fn noise(rng: &mut Rng) -> Noise {
    // A fifth of the runs have faults only, so that they are not drowned in noise.
    let loud = u32::from(!rng.chance(200));
    let mut up_to = |most: i64| u32::try_from(rng.between(0, most)).unwrap_or(0) * loud;
    Noise {
        refused: up_to(40),
        unknown: up_to(60),
        stalled: up_to(15),
        doubled: up_to(120),
        lost: up_to(150),
        late: up_to(60),
        delay: i64::from(rng.pick(&[2_u8, 10, 40, 150])),
    }
}

fn fault(rng: &mut Rng, owners: usize, workers: usize) -> Fault {
    let owner = rng.index(owners);
    let worker = rng.index(workers);
    match rng.index(18) {
        0 | 1 => Fault::CrashOwner {
            owner,
            down: rng.between(100, 5_000),
        },
        2 | 3 => Fault::PauseOwner {
            owner,
            pause: rng.between(500, 9_000),
        },
        4 | 12 => Fault::BlindOwner {
            owner,
            blind: rng.between(3_000, 9_000),
        },
        5 | 13 => Fault::HandOver { owner },
        14 => Fault::StopOwner {
            owner,
            down: rng.between(1_000, 12_000),
        },
        15 => Fault::Refuse {
            refuse: rng.between(500, 20_000),
        },
        6 => Fault::Reload { owner },
        7 => Fault::CutOwner { owner },
        8 => Fault::CrashWorker {
            worker,
            down: rng.between(100, 4_000),
        },
        9 => Fault::PauseWorker {
            worker,
            pause: rng.between(500, 8_000),
        },
        16 => Fault::CutWorker { worker },
        17 => Fault::StopWorker {
            worker,
            down: rng.between(100, 4_000),
        },
        10 => Fault::StoreDown {
            down: rng.between(100, 3_000),
        },
        _ => Fault::Replay,
    }
}

/// How a run of user code ends, by chance.
pub(crate) fn outcome(rng: &mut Rng, fails: Option<u32>) -> Status {
    if let Some(fails) = fails {
        return match rng.chance(fails) {
            true => rng.pick(&[Status::Failed, Status::Failed, Status::TimedOut]),
            false => Status::Succeeded,
        };
    }
    match rng.index(20) {
        0 => Status::Failed,
        1 => Status::TimedOut,
        _ => Status::Succeeded,
    }
}
