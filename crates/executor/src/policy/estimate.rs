//! When somebody who waits is given a slot, as far as can be told: the queue as it is, played on with run
//! times like those that were seen. Near ones are played slot by slot, a few dozen times over; what is far
//! is added up, where the law of large numbers does the same.
//!
//! Run times are taken to have a shortest time and an exponential rest with the seen mean and deviation; of
//! a deviation above the mean, to be a mixture of two exponential ones. What holds a slot already has a part
//! of its time behind it. As many as lately come back to their old places after a try, and need another slot.
//! The dice always fall alike: the same queue has the same estimate.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};

use super::RunTimes;
use super::run_model::{Dice, MOST_RETURN, Model};
use crate::queue::Millis;

/// How many must have ended.
pub(crate) const NEEDED: u32 = 5;
/// How many before somebody are played one by one.
pub(crate) const PLAYED: usize = 256;
/// The same, where each of them may lack another limit.
pub(crate) const PLAYED_IN_GROUPS: usize = 96;
/// How many who hold a slot are played one by one.
pub(crate) const PLAYED_HOLDERS: usize = 512;
/// About how many moves all plays have together, and how many plays there are.
const MOVES: usize = 8_192;
const LEAST_PLAYS: usize = 15;
const MOST_PLAYS: usize = 63;
/// How many who wait are looked at in all plays together at most, and how many who come later are played: a
/// limit that was lowered, or groups that all lack room, make lines that only grow. What needs more is added
/// up instead.
const LOOKS: usize = 1 << 19;
/// Slots that come free are used up by who goes before from this part on: nothing can be told any more.
const USED_UP: f64 = 0.97;
/// So many standard deviations hold nine of ten on one side.
const NINE_OF_TEN: f64 = 1.28;

/// Somebody who holds a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// For how long, as far as is known.
    pub(crate) age: Option<Millis>,
    pub(crate) cost: u32,
    /// Its group, by its number among the groups of a scene.
    pub(crate) group: usize,
}

/// Somebody who waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter {
    pub(crate) cost: u32,
    pub(crate) group: usize,
}

/// Some who come later and go before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overtakers {
    /// How many come in a millisecond.
    pub(crate) rate: f64,
    /// For how long they do, in milliseconds; without end where it is `None`.
    pub(crate) until: Option<f64>,
}

/// A queue as somebody in it sees it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scene {
    /// The limit of the action.
    pub(crate) limit: Option<u64>,
    /// The limit of each group.
    pub(crate) group_limit: Option<u64>,
    /// How many groups there are in the scene.
    pub(crate) groups: usize,
    pub(crate) holders: Vec<Held>,
    /// Who waits before it, in order, and last of all itself.
    pub(crate) line: VecDeque<Waiter>,
    /// What those before it take who are not in `line`.
    pub(crate) beyond: f64,
    /// Who waits before it from a time on, in so many milliseconds, by rising time.
    pub(crate) due: Vec<(f64, Waiter)>,
    pub(crate) overtakers: Vec<Overtakers>,
}

/// From now on, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Wait {
    pub(crate) earliest: f64,
    pub(crate) median: f64,
    pub(crate) latest: f64,
}

/// When the last in the line of a scene is given a slot; nothing where those who come later and go before
/// it use up what comes free.
pub(crate) fn wait(scene: &Scene, times: &RunTimes) -> Option<Wait> {
    let load = scene.load(times);
    if load.lasting >= USED_UP {
        return None;
    }
    let most = if scene.groups > 1 {
        PLAYED_IN_GROUPS
    } else {
        PLAYED
    };
    let is_near =
        scene.beyond == 0.0 && scene.line.len() <= most && scene.holders.len() <= PLAYED_HOLDERS;
    let mut looks = LOOKS;
    let near = is_near.then(|| played(scene, times, &mut looks)).flatten();
    Some(near.unwrap_or_else(|| added_up(scene, times, &load)))
}

/// Which part of what comes free goes to who comes later.
struct Load {
    /// As long as all of them come.
    lasting: f64,
    /// With until when it does, in milliseconds, by rising time.
    passing: Vec<(f64, f64)>,
}

impl Scene {
    fn capacity(&self) -> f64 {
        // Without a limit of the action each group has one of its own, and who comes is of any of them.
        let of_groups = self
            .group_limit
            .map(|limit| limit.saturating_mul(self.groups as u64));
        self.limit.or(of_groups).unwrap_or(1).max(1) as f64
    }

    fn load(&self, times: &RunTimes) -> Load {
        let of = |who: &Overtakers| who.rate * times.mean() / self.capacity();
        let (passing, lasting): (Vec<Overtakers>, Vec<Overtakers>) = self
            .overtakers
            .iter()
            .copied()
            .partition(|who| who.until.is_some());
        let mut passing: Vec<_> = passing
            .iter()
            .map(|who| (who.until.unwrap_or(0.0), of(who)))
            .collect();
        passing.sort_by(|one, other| one.0.total_cmp(&other.0));
        Load {
            lasting: lasting.iter().map(of).sum(),
            passing,
        }
    }
}

/// What is far: the sum of many run times is about what it is in the mean.
fn added_up(scene: &Scene, times: &RunTimes, load: &Load) -> Wait {
    let (mean, deviation) = (times.mean(), times.deviation());
    let of_action = scene.limit.map(|limit| {
        let units = scene.units(times, limit);
        (units, limit.max(1) as f64)
    });
    let mine = scene.line.back().map_or(0, |me| me.group);
    let of_group = scene.group_limit.map(|limit| {
        let same = scene.line.iter().filter(|it| it.group == mine);
        let units: f64 = same.map(|it| f64::from(it.cost)).sum();
        (units, limit.max(1) as f64)
    });
    let base = |(units, limit): (f64, f64)| (units - 0.5).max(0.0) * mean / limit;
    let claims = of_action.into_iter().chain(of_group);
    let mut claims: Vec<(f64, f64)> = claims
        .map(|(units, limit)| (units + returning(scene, times, (units, limit)), limit))
        .collect();
    claims.sort_by(|one, other| base(*one).total_cmp(&base(*other)));
    let Some((units, limit)) = claims.pop() else {
        return Wait {
            earliest: 0.0,
            median: 0.0,
            latest: 0.0,
        };
    };
    let median = stretched(base((units, limit)), load);
    // Each run is not like the mean, the mean is not known exactly, and who overtakes comes in bursts.
    let stretch = median / base((units, limit)).max(1e-9);
    let of_runs = units * (deviation / limit).powi(2) * stretch * stretch;
    let of_mean = (median * deviation / mean).powi(2) / f64::from(times.samples().max(1));
    let square = (mean / limit).powi(2) + (deviation / limit).powi(2);
    let came: f64 = scene
        .overtakers
        .iter()
        .map(|who| who.rate * who.until.map_or(median, |until| until.min(median)))
        .sum();
    let of_overtakers = came * square * stretch * stretch;
    let range = NINE_OF_TEN * (of_runs + of_mean + of_overtakers).sqrt();
    Wait {
        earliest: (median - range).max(0.0),
        median,
        latest: median + range,
    }
}

/// How many more slots those take who come back before somebody has one, of so many slots that are to come
/// free: who holds one now may come back as well, and who waits for its time does.
fn returning(scene: &Scene, times: &RunTimes, (units, limit): (f64, f64)) -> f64 {
    let (back, pause) = times.returns();
    let back = back.min(MOST_RETURN);
    let time = units * times.mean() / limit / (1.0 - back);
    // Whose pause is not over by then does not come in between.
    let in_time = ((time - pause) / time.max(1.0)).clamp(0.0, 1.0);
    let due = scene.due.iter().take_while(|(at, _)| *at < time);
    let due: f64 = due.map(|(_, waiter)| f64::from(waiter.cost)).sum();
    let tries = 1.0 / (1.0 - back);
    (units + limit) * in_time * (tries - 1.0) + due * tries
}

/// How much longer it takes with those who come meanwhile: `t = base + what comes until t`.
fn stretched(base: f64, load: &Load) -> f64 {
    // Those whose time is over have come wholly; the rest still comes.
    let mut behind = base;
    let mut rate: f64 = load.lasting + load.passing.iter().map(|(_, part)| part).sum::<f64>();
    for (until, part) in &load.passing {
        if rate < 1.0 {
            let time = behind / (1.0 - rate);
            if time <= *until {
                return time;
            }
        }
        behind += until * part;
        rate -= part;
    }
    behind / (1.0 - rate.min(USED_UP))
}

impl Scene {
    /// How much of the limit of the action must come free. Whoever lacks the limit of its group lets others
    /// pass: of a group only as many count as can have begun by then.
    fn units(&self, times: &RunTimes, limit: u64) -> f64 {
        let known: f64 = self.line.iter().map(|it| f64::from(it.cost)).sum();
        let all = known + self.beyond;
        let Some(group_limit) = self.group_limit.filter(|_| self.groups > 1) else {
            return all;
        };
        let me = self.line.back().map_or(0.0, |it| f64::from(it.cost));
        let mut by_group = vec![0.0; self.groups];
        for waiter in &self.line {
            by_group[waiter.group] += f64::from(waiter.cost);
        }
        let mut used = vec![0.0; self.groups];
        for holder in &self.holders {
            used[holder.group] += f64::from(holder.cost);
        }
        // What is not in the line is like what is.
        let scale = all / known.max(1.0);
        let mut units = all;
        for _ in 0..8 {
            let time = units * times.mean() / limit.max(1) as f64;
            let each = group_limit as f64;
            let begun = |(waiting, used): (&f64, &f64)| {
                let free = (each - used).max(0.0) + each * time / times.mean();
                (waiting * scale).min(free)
            };
            let sum: f64 = by_group.iter().zip(&used).map(begun).sum();
            units = sum.max(me);
        }
        units
    }
}

/// What is near: played on, again and again; nothing where that takes more than so many looks.
fn played(scene: &Scene, times: &RunTimes, looks: &mut usize) -> Option<Wait> {
    let moves = scene.line.len() + scene.holders.len() + 1;
    let plays = (MOVES / moves).clamp(LEAST_PLAYS, MOST_PLAYS);
    let mut dice = Dice::new();
    let model = Model::of(times);
    let mut waits = Vec::with_capacity(plays);
    for _ in 0..plays {
        // How far the mean may be from the one that was seen.
        let unknown = times.deviation() / times.mean() / f64::from(times.samples().max(1)).sqrt();
        let scale = (1.0 + unknown * dice.normal()).max(0.2);
        let play = Play::of(scene, &model, &mut dice);
        waits.push(play.until_start(&model, &mut dice, looks)? * scale);
    }
    waits.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = part * (plays + 1) as f64 - 1.0;
        let (low, high) = (place.floor().max(0.0) as usize, place.ceil() as usize);
        let (low, high) = (waits[low.min(plays - 1)], waits[high.min(plays - 1)]);
        low + (high - low) * (place - place.floor())
    };
    Some(Wait {
        earliest: at(0.1),
        median: at(0.5),
        latest: at(0.9),
    })
}

/// Takes one look of those that are left; nothing when none is.
fn look(looks: &mut usize) -> Option<()> {
    *looks = looks.checked_sub(1)?;
    Some(())
}

/// A time at which a slot comes free, for a heap.
#[derive(Debug, Clone, Copy, PartialEq)]
struct End {
    at: f64,
    cost: u32,
    group: usize,
}

impl Eq for End {}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for End {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.total_cmp(&other.at)
    }
}

/// Somebody whose time comes, for a heap.
fn due((at, waiter): &(f64, Waiter)) -> Reverse<End> {
    let (at, cost, group) = (*at, waiter.cost, waiter.group);
    Reverse(End { at, cost, group })
}

/// One way in which it may go on.
struct Play<'a> {
    scene: &'a Scene,
    ends: BinaryHeap<Reverse<End>>,
    used: u64,
    used_by: Vec<u64>,
    /// Who waits, with who is last in the line of the scene last here too; none where one has begun.
    line: VecDeque<Option<Waiter>>,
    /// When the next of each kind of overtakers comes.
    next: Vec<f64>,
    /// Who waits for its time, as those do whose try has ended.
    due: BinaryHeap<Reverse<End>>,
    /// In which round a group was seen to lack room.
    lacking: Vec<usize>,
}

impl<'a> Play<'a> {
    fn of(scene: &'a Scene, model: &Model, dice: &mut Dice) -> Self {
        let groups = scene.groups.max(1);
        let mut used_by = vec![0; groups];
        let mut used = 0;
        let mut ends = BinaryHeap::with_capacity(scene.holders.len() + 1);
        for holder in &scene.holders {
            used_by[holder.group] += u64::from(holder.cost);
            used += u64::from(holder.cost);
            ends.push(Reverse(End {
                at: model.runs.rest(holder.age, dice),
                cost: holder.cost,
                group: holder.group,
            }));
        }
        let next = scene.overtakers.iter();
        Self {
            ends,
            used,
            used_by,
            line: scene.line.iter().copied().map(Some).collect(),
            next: next.map(|who| dice.exponential() / who.rate).collect(),
            due: scene.due.iter().map(due).collect(),
            lacking: vec![0; groups],
            scene,
        }
    }

    /// When the last in line starts; nothing when no look is left by then.
    fn until_start(mut self, model: &Model, dice: &mut Dice, looks: &mut usize) -> Option<f64> {
        let mut now = 0.0;
        for round in 1.. {
            if self.grant((now, round), model, dice, looks)? {
                break;
            }
            let Reverse(end) = self.ends.pop()?;
            now = end.at;
            self.used -= u64::from(end.cost);
            self.used_by[end.group] -= u64::from(end.cost);
            self.come_back(end, model, dice, looks)?;
            self.overtake(now, dice, looks)?;
        }
        Some(now)
    }

    /// Whose try has just ended may be to come back, and whose time for that has come waits again: before the
    /// last in line, as all who hold a slot did.
    fn come_back(
        &mut self,
        end: End,
        model: &Model,
        dice: &mut Dice,
        looks: &mut usize,
    ) -> Option<()> {
        let (back, pause) = model.returns;
        if back > 0.0 && dice.uniform() < back {
            let at = end.at + pause;
            self.due.push(Reverse(End { at, ..end }));
        }
        while let Some(first) = self.due.peek_mut().filter(|it| it.0.at <= end.at) {
            look(looks)?;
            let Reverse(End { cost, group, .. }) = PeekMut::pop(first);
            self.line.push_front(Some(Waiter { cost, group }));
        }
        Some(())
    }

    /// Whoever came until now and goes before.
    fn overtake(&mut self, now: f64, dice: &mut Dice, looks: &mut usize) -> Option<()> {
        for (who, next) in self.scene.overtakers.iter().zip(&mut self.next) {
            while *next <= now && who.until.is_none_or(|until| *next <= until) {
                look(looks)?;
                let groups = self.used_by.len() as f64;
                let group = ((dice.uniform() * groups) as usize).min(self.used_by.len() - 1);
                self.line.push_front(Some(Waiter { cost: 1, group }));
                *next += dice.exponential() / who.rate;
            }
        }
        Some(())
    }

    /// Gives slots to who has room, in order; whether the last in line is among them.
    fn grant(
        &mut self,
        (now, round): (f64, usize),
        model: &Model,
        dice: &mut Dice,
        looks: &mut usize,
    ) -> Option<bool> {
        while self.line.front().is_some_and(Option::is_none) {
            self.line.pop_front();
        }
        let last = self.line.len().saturating_sub(1);
        for place in 0..self.line.len() {
            look(looks)?;
            let Some(waiter) = self.line[place] else {
                continue;
            };
            let Waiter { cost, group } = waiter;
            if self.lacking[group] == round {
                continue;
            }
            let has = |used: u64, limit: Option<u64>| {
                limit.is_none_or(|limit| used + u64::from(cost).min(limit) <= limit)
            };
            if !has(self.used_by[group], self.scene.group_limit) {
                self.lacking[group] = round;
                continue;
            }
            if !has(self.used, self.scene.limit) {
                return Some(false);
            }
            if place == last {
                return Some(true);
            }
            self.used += u64::from(cost);
            self.used_by[group] += u64::from(cost);
            self.line[place] = None;
            let at = now + model.runs.run(dice);
            self.ends.push(Reverse(End { at, cost, group }));
        }
        Some(false)
    }
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
