//! How right estimates are, in queues whose load does not change: seeded runs of the decisions themselves.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use attune_core::explain::NoEstimate;
use attune_core::policy::{Backoff, Factor, Path, Priorities, Retry};
use attune_core::{ActionSpec, Outcome, Priority, RejectCode, Submission};

use super::test_world::{ACTION, CLUSTER, PARTITION, WORKER, World, action, roster};
use super::*;
use crate::queue::QueueConfig;

/// Random numbers of a seed (SplitMix64, as good as any here).
struct Rng(u64);

impl Rng {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).ln()
    }
}

/// How long executions run, with a mean of a second.
#[derive(Debug, Clone, Copy)]
enum Runs {
    Constant,
    Exponential,
    /// From half a second to one and a half.
    Even,
    /// One in ten runs for 5.5 s, all others for half a second.
    Mixed,
}

impl Runs {
    fn draw(self, rng: &mut Rng) -> f64 {
        match self {
            Self::Constant => 1_000.0,
            Self::Exponential => rng.exponential(1_000.0),
            Self::Even => 500.0 + 1_000.0 * rng.uniform(),
            Self::Mixed => {
                if rng.uniform() < 0.1 {
                    5_500.0
                } else {
                    500.0
                }
            }
        }
    }
}

/// A load that does not change.
#[derive(Debug, Clone, Copy)]
struct Load {
    name: &'static str,
    limit: u32,
    runs: Runs,
    /// Which part of the slots is used in the mean.
    used: f64,
    /// Which part has a high, and which a normal priority; the rest has a low one.
    priorities: (f64, f64),
    ageing_seconds: Option<u32>,
    /// How many groups there are, the first of which many belong to, and the limit of each.
    groups: Option<(u32, u32)>,
    /// Which part of all tries fails, and how long their executions wait before they are tried again.
    fails: Option<(f64, u64)>,
}

const PLAIN: Load = Load {
    name: "",
    limit: 1,
    runs: Runs::Exponential,
    used: 0.95,
    priorities: (0.0, 1.0),
    ageing_seconds: None,
    groups: None,
    fails: None,
};

/// What came of the estimates of a load.
struct Figures {
    estimates: usize,
    none: usize,
    /// In percent.
    median_error: f64,
    earlier: f64,
    within: f64,
    later: f64,
}

impl Figures {
    /// The mean over so many runs.
    fn of_seeds(load: Load, seeds: u64) -> Self {
        let runs: Vec<Self> = (1..=seeds).map(|seed| run(load, seed)).collect();
        let mean = |of: fn(&Self) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        Self {
            estimates: runs.iter().map(|it| it.estimates).sum(),
            none: runs.iter().map(|it| it.none).sum(),
            median_error: mean(|it| it.median_error),
            earlier: mean(|it| it.earlier),
            within: mean(|it| it.within),
            later: mean(|it| it.later),
        }
    }
}

const EXECUTIONS: usize = 4_000;

fn run(load: Load, seed: u64) -> Figures {
    let mut rng = Rng(seed);
    let mut of_load = action(Some(load.limit));
    of_load.spec.policy.priority = Priorities {
        ageing_seconds: load.ageing_seconds,
        ..Priorities::default()
    };
    if let Some((_, limit)) = load.groups {
        let concurrency = &mut of_load.spec.policy.concurrency;
        concurrency.group_by = vec!["group".parse::<Path>().unwrap()];
        concurrency.group_limit = Some(limit);
    }
    let (fails, pause) = load.fails.unwrap_or_default();
    if load.fails.is_some() {
        of_load.spec.policy.retry = Some(Retry {
            max_attempts: Some(100),
            backoff: Backoff {
                initial_ms: pause,
                max_ms: pause,
                factor: Factor(1.0),
                jitter: Factor(0.0),
            },
            ..Retry::default()
        });
    }
    let queues = ExecutionQueueManager::new(QueueConfig {
        max_queue_length: 100_000,
        queue_timeout_seconds: 1_000_000,
    });
    let mut partition = Partition::new(PARTITION, Epoch(1), CLUSTER, queues, roster());
    let recover = Event::Recover {
        actions: vec![of_load],
        totals: Vec::new(),
        sets: Sets::default(),
    };
    partition.step(0, recover);
    let between = 1_000.0 / f64::from(load.limit) / load.used / (1.0 - fails);
    let mut next_arrival = 0.0;
    let mut ends: BinaryHeap<Reverse<(Millis, ExecutionId, Attempt)>> = BinaryHeap::new();
    let mut told: HashMap<ExecutionId, (Millis, attune_core::explain::Estimate)> = HashMap::new();
    let mut errors = Vec::new();
    let (mut earlier, mut later, mut none, mut came) = (0, 0, 0, 0);
    while came < EXECUTIONS {
        let end = ends.peek().map(|Reverse((at, ..))| *at);
        let due = partition.next_deadline();
        let due = due.filter(|at| end.is_none_or(|end| *at < end) && (*at as f64) < next_arrival);
        let (now, effects) = match end.filter(|at| (*at as f64) <= next_arrival) {
            _ if let Some(now) = due => (now, partition.step(now, Event::Tick)),
            Some(now) => {
                let Some(Reverse((_, execution_id, attempt))) = ends.pop() else {
                    break;
                };
                let status = match fails > 0.0 && rng.uniform() < fails {
                    true => Status::Failed,
                    false => Status::Succeeded,
                };
                let completed = Event::Completed(Completion {
                    execution_id,
                    attempt,
                    action_id: ACTION,
                    outcome: Arc::new(Outcome::of(status, None)),
                    worker: WORKER,
                    user: None,
                    ran: None,
                });
                (now, partition.step(now, completed))
            }
            None => {
                let now = next_arrival as Millis;
                next_arrival += rng.exponential(between);
                came += 1;
                (now, partition.step(now, submit(load, &mut rng)))
            }
        };
        for effect in effects {
            let id = match effect {
                Effect::Dispatch(grantee) => {
                    let at = now + load.runs.draw(&mut rng).round() as Millis;
                    ends.push(Reverse((at, grantee.execution_id, grantee.attempt)));
                    let id = grantee.execution_id;
                    if let Some((asked, estimate)) = told.remove(&id) {
                        let started = now;
                        let [early, at, late] =
                            [estimate.earliest, estimate.starts_at, estimate.latest]
                                .map(|time| time.timestamp_millis());
                        earlier += usize::from(started < early);
                        later += usize::from(started > late);
                        let actual = (started - asked).max(1) as f64;
                        errors.push(((at - started).abs() as f64) / actual);
                    }
                    continue;
                }
                Effect::Insert(new) => new.id,
                _ => continue,
            };
            // The first tenth brings the queue to where it stays.
            if came < EXECUTIONS / 10 || came % 3 != 0 {
                continue;
            }
            let said = partition.explanation(now, id).unwrap();
            match (said.estimate, said.no_estimate) {
                (Some(estimate), _) => {
                    told.insert(id, (now, estimate));
                }
                (None, Some(_)) => none += 1,
                (None, None) => {}
            }
        }
    }
    errors.sort_by(f64::total_cmp);
    let many = errors.len();
    let percent = |count: usize| 100.0 * count as f64 / many.max(1) as f64;
    Figures {
        estimates: many,
        none,
        median_error: errors.get(many / 2).copied().unwrap_or(0.0) * 100.0,
        earlier: percent(earlier),
        within: percent(many - earlier - later),
        later: percent(later),
    }
}

fn submit(load: Load, rng: &mut Rng) -> Event {
    let mut submission = Submission::new("core.noop");
    let (high, normal) = load.priorities;
    let draw = rng.uniform();
    submission.priority = Some(match draw {
        _ if draw < high => Priority::High,
        _ if draw < high + normal => Priority::Normal,
        _ => Priority::Low,
    });
    submission.group = load.groups.map(|(groups, _)| {
        let group = (f64::from(groups) * rng.uniform() * rng.uniform()) as u32;
        group.to_string()
    });
    Event::Submit {
        submit: Submit::new(RequestId::fresh(), submission, OnReject::Answer),
        known: None,
        reply_to: None,
    }
}

#[test]
fn estimates_are_right_within_their_bars_under_loads_that_do_not_change() {
    let priorities = Load {
        limit: 5,
        used: 0.98,
        runs: Runs::Even,
        priorities: (0.1, 0.25),
        ..PLAIN
    };
    let groups = Load {
        limit: 8,
        used: 0.95,
        groups: Some((10, 3)),
        ..PLAIN
    };
    let many = Load {
        limit: 20,
        used: 0.98,
        ..PLAIN
    };
    let loads = [
        Load {
            name: "1 slot, exponential",
            ..PLAIN
        },
        Load {
            name: "1 slot, constant",
            runs: Runs::Constant,
            ..PLAIN
        },
        Load {
            name: "1 slot, mixed",
            runs: Runs::Mixed,
            ..PLAIN
        },
        Load {
            name: "20 slots, exponential",
            ..many
        },
        Load {
            name: "20 slots, constant",
            runs: Runs::Constant,
            ..many
        },
        Load {
            name: "20 slots, even",
            runs: Runs::Even,
            ..many
        },
        Load {
            name: "5 slots, priorities",
            ..priorities
        },
        Load {
            name: "5 slots, priorities that age",
            ageing_seconds: Some(10),
            ..priorities
        },
        Load {
            name: "8 slots, groups",
            ..groups
        },
        Load {
            name: "8 slots, groups, even",
            runs: Runs::Even,
            ..groups
        },
        Load {
            name: "1 slot, a third fails and comes back at once",
            fails: Some((0.33, 50)),
            ..PLAIN
        },
        Load {
            name: "8 slots, half fail and come back after 3 s",
            fails: Some((0.5, 3_000)),
            limit: 8,
            used: 0.98,
            ..PLAIN
        },
        Load {
            name: "8 slots, groups, even, a third fails and comes back after 1 s",
            runs: Runs::Even,
            fails: Some((0.33, 1_000)),
            ..groups
        },
    ];
    println!("| load | estimates | median error | earlier | in the range | later |");
    for load in loads {
        let figures = Figures::of_seeds(load, 2);
        println!(
            "| {} | {} | {:.0} % | {:.0} % | {:.0} % | {:.0} % |",
            load.name,
            figures.estimates,
            figures.median_error,
            figures.earlier,
            figures.within,
            figures.later
        );
        assert!(figures.estimates > 1_500, "{}: too few", load.name);
        assert_eq!(figures.none, 0, "{}", load.name);
        assert!(
            figures.median_error <= 25.0,
            "{}: {}",
            load.name,
            figures.median_error
        );
        assert!(figures.within >= 70.0, "{}: {}", load.name, figures.within);
        // Of what always takes as long it is known exactly when it ends.
        let is_certain = matches!(load.runs, Runs::Constant);
        assert!(
            is_certain || figures.within <= 90.0,
            "{}: {}",
            load.name,
            figures.within
        );
    }
}

fn no_estimate(world: &World, id: ExecutionId) -> Option<NoEstimate> {
    world
        .partition
        .explanation(world.now, id)
        .unwrap()
        .no_estimate
}

/// Runs what holds the one slot for a second, so many times.
fn run_some(world: &mut World, times: usize) {
    for _ in 0..times {
        world.now += 1_000;
        let holder = world.holders()[0];
        let attempt = world.partition.holds(holder).unwrap();
        world.complete(holder, attempt.0);
    }
}

#[test]
fn nothing_is_told_before_five_have_ended_and_after_a_takeover() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(20);
    let last = *ids.last().unwrap();
    let few = |samples| Some(NoEstimate::FewSamples { samples, needed: 5 });
    assert_eq!(no_estimate(&world, last), few(0));
    run_some(&mut world, 4);
    assert_eq!(no_estimate(&world, last), few(4));
    run_some(&mut world, 1);
    let said = world.partition.explanation(world.now, last).unwrap();
    let estimate = said.estimate.unwrap();
    assert_eq!((estimate.basis.samples, estimate.basis.mean_ms), (5, 1_000));
    // Fourteen have the slot before it, each for a second.
    assert_eq!(estimate.starts_at.timestamp_millis(), world.now + 14_000);
    let mut world = world.take_over(Some(1));
    assert_eq!(no_estimate(&world, last), few(0));
    // It is not known since when the first has held its slot.
    run_some(&mut world, 5);
    assert_eq!(no_estimate(&world, last), few(4));
    run_some(&mut world, 1);
    assert_eq!(no_estimate(&world, last), None);
}

#[test]
fn another_program_takes_another_time() {
    let mut world = World::new(Some(1), 100);
    let last = world.submit(20)[19];
    run_some(&mut world, 6);
    let mut other = action(Some(1));
    (other.version, other.spec.timeout_seconds) = (2, 9);
    world.round(vec![Event::ActionKnown(Box::new(other.clone()))]);
    assert_eq!(no_estimate(&world, last), None, "it is the same program");
    other.version = 3;
    other.spec.run = ActionSpec::core_pack().pop().unwrap().run;
    assert_ne!(other.spec.run, action(Some(1)).spec.run);
    world.round(vec![Event::ActionKnown(Box::new(other))]);
    let few = NoEstimate::FewSamples {
        samples: 0,
        needed: 5,
    };
    assert_eq!(no_estimate(&world, last), Some(few));
}

#[test]
fn who_is_passed_faster_than_slots_come_free_is_told_so() {
    let mut world = World::new(Some(1), 100);
    world.submit_with(5, Priority::High);
    let low = world.submit_with(1, Priority::Low)[0];
    for _ in 0..20 {
        world.submit_with(1, Priority::High);
        run_some(&mut world, 1);
    }
    assert_eq!(no_estimate(&world, low), Some(NoEstimate::Overtaken));
}

#[test]
fn those_that_came_at_once_are_no_sign_that_more_of_them_come() {
    let mut world = World::new(Some(1), 100);
    world.submit_with(8, Priority::High);
    let normal = world.submit_with(1, Priority::Normal)[0];
    run_some(&mut world, 7);
    let said = world.partition.explanation(world.now, normal).unwrap();
    assert_eq!((said.position, said.no_estimate), (Some(0), None));
}

#[test]
fn what_is_not_here_is_refused() {
    let mut world = World::new(Some(1), 10);
    let id = world.submit(1)[0];
    world.complete(id, 1);
    let refused = |world: &World, id| world.partition.explanation(world.now, id).unwrap_err().code;
    assert_eq!(refused(&world, id), RejectCode::AlreadyEnded);
    let elsewhere = ExecutionId::new(PartitionId(3), id.seq());
    assert_eq!(refused(&world, elsewhere), RejectCode::WrongPartition);
}

#[test]
fn a_question_changes_nothing_and_is_answered_with_the_round() {
    let mut world = World::new(Some(1), 10);
    let ids = world.submit(2);
    let before = world.stored.clone();
    let request_id = RequestId::fresh();
    let effects = world.step(Event::Explain {
        request_id,
        execution_id: ids[1],
        reply_to: Some(Arc::from("asker")),
    });
    let [Effect::Answer { answer, .. }] = effects.as_slice() else {
        panic!("{effects:?}");
    };
    let said = answer.explanation.as_ref().unwrap();
    assert_eq!((answer.request_id, said.position), (request_id, Some(0)));
    assert_eq!(world.stored.facts, before.facts);
    // Nobody waits for the answer: nothing is worked out.
    let unasked = world.step(Event::Explain {
        request_id,
        execution_id: ids[1],
        reply_to: None,
    });
    assert!(unasked.is_empty());
}
