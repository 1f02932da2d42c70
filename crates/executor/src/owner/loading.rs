//! Rebuilds the queues of a partition that was taken.
//!
//! A new owner loads what is stored before it decides anything: nothing is granted before the
//! holders are known. Its lease was committed first, so no older owner can still write; what was
//! dispatched and not claimed is dispatched again, in the same attempt. The queues are nobody's
//! to see until they are whole.

use std::collections::BTreeSet;

use attune_core::plant::Bug;
use attune_core::{Epoch, PartitionId, RequestId, WorkerId};

use super::backoff::Backoff;
use super::look_ups::LookUps;
use super::{Call, Notice, Output, Owner, Purpose, Reply, Stage};
use crate::partition::{Event, Partition};
use crate::queue::{ExecutionQueueManager, Millis};
use crate::stored::{LoadedTo, MeterPlace};

/// How many partitions are loaded at once.
const LOADS_AT_ONCE: usize = 4;

/// A partition whose queues are being rebuilt.
#[derive(Debug)]
pub(super) struct Load {
    began: Millis,
    partition: Partition,
    next: Next,
    /// When the gap of its requests was asked for, among all such questions.
    gap_asked: u64,
    backoff: Backoff,
    /// Since when it cannot be read, and what the store said last.
    refused: Option<(Millis, String)>,
}

/// What is to be asked next.
#[derive(Debug, Clone)]
struct Next {
    of: Page,
    /// When; `None` while the store is being asked.
    at: Option<Millis>,
}

/// What a partition is made of, page by page, each after where the one before ended.
#[derive(Debug, Clone)]
enum Page {
    Queues,
    Meters(Option<MeterPlace>),
    Rows(Option<LoadedTo>),
}

impl Page {
    fn call(&self, partition: PartitionId, around: RequestId, limit: u32) -> Call {
        match self {
            Self::Queues => Call::LoadQueues { partition, around },
            Self::Meters(after) => Call::LoadMeters {
                partition,
                after: after.clone(),
                limit,
            },
            Self::Rows(after) => Call::LoadRows {
                partition,
                after: *after,
                limit,
            },
        }
    }
}

impl Load {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        self.next.at
    }

    /// Since when it cannot be loaded, and why.
    pub(super) fn refused(&self) -> Option<(Millis, &str)> {
        let (since, words) = self.refused.as_ref()?;
        Some((*since, words))
    }
}

impl Owner {
    /// The beginning of loading a partition.
    pub(super) fn load_of(&self, now: Millis, id: PartitionId, epoch: Epoch) -> Load {
        let queues = ExecutionQueueManager::new(self.options.queue);
        let roster = self.roster.clone();
        roster.lock().forget_partition(id);
        let mut partition = Partition::new(id, epoch, self.options.cluster, queues, roster)
            .with_steps_of(self.options.step_items)
            .with_secrets(self.options.secrets.clone());
        if self.options.keep_log {
            partition.keep_log();
        }
        Load {
            began: now,
            partition,
            next: Next {
                of: Page::Queues,
                at: Some(now),
            },
            gap_asked: 0,
            backoff: Backoff::new(20, 2_000),
            refused: None,
        }
    }

    /// Asks for what the partitions that are loading need next.
    pub(super) fn go_on_loading(&mut self, now: Millis) {
        let asked = self
            .places
            .values()
            .filter(|place| matches!(&place.stage, Stage::Loading(load) if load.next.at.is_none()));
        let around = LookUps::around(self.clock.at(now));
        let mut room = LOADS_AT_ONCE.saturating_sub(asked.count());
        let mut calls = Vec::new();
        for (id, place) in &mut self.places {
            let Stage::Loading(load) = &mut place.stage else {
                continue;
            };
            if load.next.at.is_none_or(|at| at > now) {
                continue;
            }
            if room == 0 {
                break;
            }
            room -= 1;
            load.next.at = None;
            load.gap_asked = match load.next.of {
                Page::Queues => self.look_ups.ask_for_gap(),
                Page::Meters(_) | Page::Rows(_) => load.gap_asked,
            };
            let call = load.next.of.call(*id, around, self.options.page_rows);
            calls.push((Purpose::Load(*id, place.epoch), call));
        }
        for (purpose, call) in calls {
            self.call(purpose, call);
        }
    }

    /// The store has answered what a partition that is loading needs.
    pub(super) fn loaded(&mut self, now: Millis, id: PartitionId, epoch: Epoch, reply: Reply) {
        let wall = self.clock.at(now);
        let Some(place) = self
            .places
            .get_mut(&id)
            .filter(|place| place.epoch == epoch)
        else {
            return;
        };
        let Stage::Loading(load) = &mut place.stage else {
            return;
        };
        match reply {
            Reply::Queues {
                actions,
                totals,
                sets,
                gap,
            } => {
                load.refused = None;
                let asked = load.gap_asked;
                let loaded = sets.clone();
                let recover = Event::Recover {
                    actions,
                    totals,
                    sets,
                };
                load.partition.step(wall, recover);
                // Most partitions count nothing.
                let of = match load.partition.counts() {
                    true => Page::Meters(None),
                    false => Page::Rows(None),
                };
                load.next = Next { of, at: Some(now) };
                // It may be newer than what was read beside the rounds.
                self.pausing.learn(loaded.pauses);
                self.policing.learn(loaded.policies);
                self.look_ups.learn(asked, gap);
            }
            Reply::Meters { rows, next } => {
                load.refused = None;
                load.partition.step(wall, Event::RecoverMeters(rows));
                let of = match next {
                    Some(next) => Page::Meters(Some(next)),
                    None => Page::Rows(None),
                };
                load.next = Next { of, at: Some(now) };
            }
            Reply::Rows { rows, next } => {
                load.refused = None;
                load.partition.step(wall, Event::RecoverRows(rows));
                load.next = Next {
                    of: Page::Rows(next),
                    at: Some(now),
                };
                if next.is_none() {
                    self.adopt(now, id);
                }
            }
            reply => {
                if let Reply::Failed(failure) = reply {
                    let since = load.refused.take().map_or(now, |(since, _)| since);
                    load.refused = Some((since, failure.words));
                }
                let at = now + load.backoff.next_delay(&mut self.chance);
                load.next.at = Some(at);
            }
        }
    }

    /// Serves a partition from now on.
    fn adopt(&mut self, now: Millis, id: PartitionId) {
        let Some(place) = self.places.get_mut(&id) else {
            return;
        };
        let leaving = Stage::Leaving {
            until: now,
            unsubscribing: false,
        };
        let Stage::Loading(load) = std::mem::replace(&mut place.stage, leaving) else {
            return;
        };
        let Load {
            began,
            mut partition,
            ..
        } = *load;
        partition.move_to(&self.queues);
        // What was found is no decision: it is a fact whatever becomes of the first round.
        self.out.extend(partition.take_log().map(Output::Loaded));
        let used: Vec<_> = partition.used_queues().collect();
        let used = used.into_iter().map(|action_id| (id, action_id));
        if !Bug::FiguresForgotten.is_planted() {
            self.telling.snapshots.changed(used);
        }
        place.stage = Stage::Serving(Box::new(partition));
        let epoch = place.epoch;
        self.open_streams(id);
        self.pausing.adopt(now + self.options.reconcile.interval);
        self.policing.adopt(now + self.options.reconcile.interval);
        self.adopt_operations();
        let elapsed_ms = now - began;
        self.say(Notice::TakenOver {
            partition: id,
            epoch,
            elapsed_ms,
        });
    }

    /// Opens the streams of a partition that was taken.
    fn open_streams(&mut self, id: PartitionId) {
        let roster = self.roster.lock();
        let lives = roster.lives().map(|life| life.worker);
        // Also those that hold nothing: what they have to say goes to an earlier owner until then.
        let mut workers: BTreeSet<WorkerId> = lives.collect();
        workers.extend(roster.holders_of(id));
        drop(roster);
        for worker in workers {
            self.links.want_sync(id, worker);
        }
    }
}
