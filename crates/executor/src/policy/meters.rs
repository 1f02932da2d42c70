//! What has started lately in one queue, for each of the limits that count starts.
//!
//! The time here never falls, whatever the clock of the owner shows. What is over goes: of a queue that
//! stands idle nothing is left when its windows are.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use attune_core::GroupKey;

use super::window::{Rate, Window};
use super::{QueueLimits, RateBound};
use crate::queue::Millis;

/// How many keys are looked at with each start whether they are over: more than come with it.
const LOOKS: usize = 2;

/// Which limit of an action counts starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StartLimit {
    /// `rate_limit`, with the mark of the rule that says for whom.
    Rate(i64),
    /// `min_interval_ms`.
    Interval,
}

/// What was counted for a limit and a key, to be stored.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) limit: StartLimit,
    pub(crate) key: GroupKey,
    pub(crate) state: Vec<u8>,
    /// From when on it says nothing any more.
    pub(crate) over_at: Millis,
}

/// What has started lately in one queue.
#[derive(Debug, Clone)]
pub(crate) struct Meters {
    now: Millis,
    /// Of all together, for the rate.
    shared: Window,
    /// The same, for the interval.
    paced: Window,
    /// Of each key.
    keyed: HashMap<GroupKey, Window>,
    /// When a key may be over; each has one entry.
    over: BinaryHeap<Reverse<(Millis, GroupKey)>>,
    /// Whose starts of the round under way are not stored.
    fresh: Vec<GroupKey>,
    /// When the last has started.
    last: Millis,
    /// What another owner has written down as of the future, while it may turn out that the clock was behind.
    ahead: Vec<Ahead>,
}

/// Starts that another owner has written down as of the future.
#[derive(Debug, Clone)]
struct Ahead {
    limit: StartLimit,
    key: GroupKey,
    /// As of when they count.
    as_of: Millis,
    /// From when on they count no more, if the clock has not come to their time by then.
    over_at: Millis,
    /// When they were, by the clock of the store.
    times: Vec<(Millis, u32)>,
}

impl Meters {
    pub(crate) fn new(now: Millis) -> Self {
        Self {
            now,
            shared: Window::default(),
            paced: Window::default(),
            keyed: HashMap::new(),
            over: BinaryHeap::new(),
            fresh: Vec::new(),
            last: Millis::MIN,
            ahead: Vec::new(),
        }
    }

    /// It is this time, or later.
    pub(crate) fn pass(&mut self, now: Millis) {
        self.now = self.now.max(now);
        if !self.ahead.is_empty() {
            self.catch_up();
        }
    }

    /// Puts right what was written down as of a time that has come since.
    fn catch_up(&mut self) {
        let now = self.now;
        for it in std::mem::take(&mut self.ahead) {
            let has_come = it.times.first().is_some_and(|(time, _)| *time <= now);
            if !has_come {
                if now < it.over_at {
                    self.ahead.push(it);
                }
                continue;
            }
            let window = self.window(it.limit, it.key, it.over_at);
            window.put_right(it.as_of, &it.times);
            let last = it.times.last().map_or(now, |(time, _)| *time);
            self.last = self.last.max(last);
        }
    }

    /// What has started for a limit and a key, which may be over at that time.
    fn window(&mut self, limit: StartLimit, key: GroupKey, over_at: Millis) -> &mut Window {
        match limit {
            StartLimit::Interval => &mut self.paced,
            StartLimit::Rate(0) => &mut self.shared,
            StartLimit::Rate(_) => self.keyed.entry(key).or_insert_with(|| {
                self.over.push(Reverse((over_at, key)));
                Window::default()
            }),
        }
    }

    /// The time.
    pub(crate) fn now(&self) -> Millis {
        self.now
    }

    /// Until when nobody may start, whoever it is; `None` when somebody may.
    pub(crate) fn until(&self, limits: &QueueLimits) -> Option<Millis> {
        let rate = limits.shared_rate().map(|rate| self.shared.next_time(rate));
        let interval = limits.interval().map(|it| self.paced.next_time(it));
        let until = rate.into_iter().chain(interval).max();
        until.filter(|until| *until > self.now)
    }

    /// Until when nobody of this key may start by the rate, be it of all together or of the key; `None` when
    /// somebody may. The interval is another matter: it refuses nobody, and sets no key aside.
    pub(crate) fn rate_until(&self, limits: &QueueLimits, key: GroupKey) -> Option<Millis> {
        let RateBound { rate, mark, .. } = limits.rate()?;
        let window = match mark {
            0 => &self.shared,
            _ => self.keyed.get(&key)?,
        };
        let until = window.next_time(rate);
        (until > self.now).then_some(until)
    }

    /// Somebody starts.
    pub(crate) fn start(&mut self, limits: &QueueLimits, key: GroupKey) {
        let now = self.now;
        self.last = now;
        if let Some(rate) = limits.shared_rate() {
            self.shared.start(rate, now);
        }
        if let Some(interval) = limits.interval() {
            self.paced.start(interval, now);
        }
        let Some(rate) = limits.keyed_rate() else {
            return;
        };
        self.drop_over(rate);
        let over = &mut self.over;
        let window = self.keyed.entry(key).or_insert_with(|| {
            over.push(Reverse((now.saturating_add(rate.window), key)));
            Window::default()
        });
        if !window.is_fresh() {
            self.fresh.push(key);
        }
        window.start(rate, now);
    }

    /// Forgets some keys of which nothing counts any more.
    fn drop_over(&mut self, rate: Rate) {
        for _ in 0..LOOKS {
            let Some(Reverse((_, key))) = self
                .over
                .peek()
                .copied()
                .filter(|Reverse((at, _))| *at <= self.now)
            else {
                return;
            };
            self.over.pop();
            let over_at = self.keyed.get(&key).map(|window| window.over_at(rate));
            match over_at.filter(|at| *at > self.now) {
                Some(at) => self.over.push(Reverse((at, key))),
                None => drop(self.keyed.remove(&key)),
            }
        }
    }

    /// What is to be stored of the round under way, which is written down as of `ahead` milliseconds later
    /// than it was decided.
    pub(crate) fn fresh(&self, limits: &QueueLimits, ahead: Millis) -> Vec<Counted> {
        let mut counted = Vec::new();
        let mut add = |limit, key, window: &Window, rate: Rate| {
            if window.is_fresh() {
                counted.push(Counted {
                    limit,
                    key,
                    state: window.to_bytes(ahead),
                    over_at: window.over_at(rate).saturating_add(ahead),
                });
            }
        };
        let all = GroupKey::default();
        if let Some(rate) = limits.shared_rate() {
            add(StartLimit::Rate(0), all, &self.shared, rate);
        }
        if let Some(interval) = limits.interval() {
            add(StartLimit::Interval, all, &self.paced, interval);
        }
        if let Some(RateBound { rate, mark, .. }) = limits.rate() {
            for key in &self.fresh {
                if let Some(window) = self.keyed.get(key) {
                    add(StartLimit::Rate(mark), *key, window, rate);
                }
            }
        }
        counted
    }

    /// What has started in the round under way is stored, since `at` at the latest.
    pub(crate) fn settle(&mut self, limits: &QueueLimits, at: Millis) {
        self.last = self.last.max(at);
        if let Some(rate) = limits.shared_rate() {
            self.shared.settle(rate, at);
        }
        if let Some(interval) = limits.interval() {
            self.paced.settle(interval, at);
        }
        for key in std::mem::take(&mut self.fresh) {
            if let (Some(window), Some(rate)) = (self.keyed.get_mut(&key), limits.keyed_rate()) {
                window.settle(rate, at);
            }
        }
    }

    /// Takes in what another owner has written at `written_at` by the store's clock. What cannot be read
    /// counts as if the rate had been used up then.
    pub(crate) fn restore(
        &mut self,
        limits: &QueueLimits,
        limit: StartLimit,
        key: GroupKey,
        (state, written_at): (&[u8], Millis),
    ) {
        let rate = match limit {
            StartLimit::Rate(mark) => limits.rate().filter(|rate| rate.mark == mark),
            StartLimit::Interval => None,
        };
        let rate = rate.map(|rate| rate.rate);
        let bound = rate.or(limits.interval().filter(|_| limit == StartLimit::Interval));
        let Some(bound) = bound else {
            return;
        };
        let read = Window::from_bytes(state, written_at);
        let mut window = read.unwrap_or_else(|| Window::used_up(bound, written_at));
        let times = window.as_of(self.now);
        if !times.is_empty() {
            let as_of = self.now;
            let over_at = as_of.saturating_add(bound.window);
            self.ahead.push(Ahead {
                limit,
                key,
                as_of,
                over_at,
                times,
            });
        }
        let over_at = window.over_at(bound);
        if over_at <= self.now {
            return;
        }
        self.last = self.last.max(over_at.saturating_sub(bound.window));
        match limit {
            StartLimit::Interval => self.paced = window,
            StartLimit::Rate(0) => self.shared = window,
            StartLimit::Rate(_) => {
                if self.keyed.insert(key, window).is_none() {
                    self.over.push(Reverse((over_at, key)));
                }
            }
        }
    }

    /// Another limit is in force. What was counted stays counted, unless it was for others.
    pub(crate) fn change(&mut self, earlier: &QueueLimits, limits: &QueueLimits) {
        let mark = |limits: &QueueLimits| limits.rate().map(|rate| rate.mark);
        if mark(earlier) != mark(limits) {
            self.shared = Window::default();
            self.ahead.retain(|it| it.limit == StartLimit::Interval);
            self.keyed.clear();
            self.over.clear();
            self.fresh.clear();
        }
        if limits.interval().is_none() {
            self.paced = Window::default();
            self.ahead.retain(|it| it.limit != StartLimit::Interval);
        }
    }

    /// From when on nothing of it counts any more.
    pub(crate) fn over_at(&self, limits: &QueueLimits) -> Millis {
        let rate = limits.rate().map_or(0, |rate| rate.rate.window);
        let interval = limits.interval().map_or(0, |interval| interval.window);
        // As of the end of its slice.
        let longest = rate.max(interval);
        self.last.saturating_add(longest + longest / 32 + 1)
    }

    /// Whether nothing of it counts any more, and all of it is stored.
    pub(crate) fn is_over(&self, limits: &QueueLimits) -> bool {
        let is_fresh = self.shared.is_fresh() || self.paced.is_fresh() || !self.fresh.is_empty();
        !is_fresh && self.over_at(limits) <= self.now
    }
}
