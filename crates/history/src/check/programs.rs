//! What run programs wrote down themselves: the witness that believes nobody. Where a program
//! wrote nothing, its worker's record of the run takes its place.
//!
//! *I2.* At the start of a run, no more runs of its action may be under way than the limit was
//! when the latest of them was granted its slot. So a raised limit counts from the grants that
//! it made possible, and a lowered one from the next grant. While a run is under way whose grant
//! is not recorded (its owner was killed right then), the limit is not known and nothing is
//! judged. So with the runs of each group and its limit, where executions have never been grouped anew.
//!
//! *I3.* Where the limit of an action has always been 1, the first attempts of one priority that
//! were not delayed start in the order of their ids. Later attempts are left out: their place
//! was taken from them for a while.
//!
//! *I5.* No attempt starts twice, as its programs say or as its worker does.
//!
//! *The end of a run* is what the program wrote last; of one that was killed, the end of its
//! process as somebody saw it, or of its worker's run; if nobody saw it, the moment at which the
//! owner released its slot or granted the next. When all of these went down with the process
//! that knew them, the run counts only at its own start: it may have ended at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use attune_core::{ActionId, Attempt, ExecutionId, Flow, GroupKey, Priority};

use super::asked::{Limits, invoked};
use super::decision::Bounds;
use super::facts::{Facts, Key, Mark, Seen};
use super::{Promise, Violation, violation};

/// What was judged.
pub(super) struct Judged {
    pub(super) judged: u64,
    pub(super) unended: u64,
    /// Starts held against the limits that were asked for.
    pub(super) limits: u64,
}

/// A run of an attempt.
#[derive(Debug, Clone, Copy)]
struct Run {
    key: Key,
    start_ns: i64,
    end_ns: i64,
    /// The record of its start.
    record: u32,
}

pub(super) fn judge(facts: &Facts, broken: &mut Vec<Violation>) -> Judged {
    let mut judged = Judged {
        judged: 0,
        unended: 0,
        limits: 0,
    };
    let limits = Limits::of(&facts.asked);
    let invoked = invoked(facts);
    let actions = actions(facts);
    let mut by_action: BTreeMap<ActionId, Vec<Run>> = BTreeMap::new();
    let mut marks: Vec<&Mark> = facts.marks.iter().collect();
    // Programs come before workers, starts before ends.
    marks.sort_unstable_by_key(|mark| {
        let is_worker = mark.seen == Seen::Worker;
        (mark.key, is_worker, mark.is_end, mark.t_ns)
    });
    for marks in marks.chunk_by(|a, b| a.key == b.key) {
        let by_program = marks
            .iter()
            .any(|mark| !mark.is_end && mark.seen != Seen::Worker);
        judge_twice(marks, broken);
        let starts = marks
            .iter()
            .filter(|mark| !mark.is_end && (mark.seen != Seen::Worker) == by_program);
        for start in starts {
            judged.judged += 1;
            let end = end_of(facts, start, marks);
            judged.unended += u64::from(end.is_none());
            let end = end.or_else(|| released(facts, start)).unwrap_or(start.t_ns);
            if let Some(action) = action_of(facts, &actions, start) {
                by_action.entry(action).or_default().push(Run {
                    key: start.key,
                    start_ns: start.t_ns,
                    // What takes no time still is: its end comes after its start.
                    end_ns: end.max(start.t_ns.saturating_add(1)),
                    record: start.record,
                });
            }
        }
    }
    let always_1 = always_1(facts);
    for (action, mut runs) in by_action {
        runs.sort_unstable_by_key(|run| (run.start_ns, run.record));
        let of = format!("action {action}");
        judge_limit(facts, &of, |bounds| bounds.limit, &runs, broken);
        for ((rule, group), runs) in by_group(facts, &runs) {
            let of = format!("group {group} of action {action}");
            // The limit is that of the groups by another rule where who was granted last was under that.
            let is_its = |bounds: &Bounds| bounds.demands == Some(rule);
            let limit_of = |bounds: &Bounds| bounds.group_limit.filter(|_| is_its(bounds));
            judge_limit(facts, &of, limit_of, &runs, broken);
        }
        judged.limits += judge_asked_limit(facts, &limits, &invoked, (action, &runs), broken);
        if always_1.get(&action) == Some(&true) {
            judge_order(facts, &runs, broken);
        }
    }
    judged
}

/// Whether an attempt started once. `marks` are all that there are of it.
fn judge_twice(marks: &[&Mark], broken: &mut Vec<Violation>) {
    for by_worker in [false, true] {
        let mut starts = marks
            .iter()
            .filter(|mark| !mark.is_end && (mark.seen == Seen::Worker) == by_worker);
        let Some(first) = starts.next() else { continue };
        for again in starts {
            let (id, attempt) = again.key;
            let what = format!("attempt {attempt} of execution {id} started twice");
            broken.push(violation(Promise::I5, what, [first.record, again.record]));
        }
    }
}

/// The action of each ref, as far as executions of both are known.
fn actions(facts: &Facts) -> HashMap<u32, ActionId> {
    let of = |mark: &Mark| match mark.seen {
        Seen::Program { action_ref, .. } => {
            Some((action_ref, facts.execution(mark.key.0)?.action?))
        }
        Seen::Worker => None,
    };
    facts.marks.iter().filter_map(of).collect()
}

fn action_of(facts: &Facts, actions: &HashMap<u32, ActionId>, start: &Mark) -> Option<ActionId> {
    let known = facts.execution(start.key.0).and_then(|known| known.action);
    known.or_else(|| match start.seen {
        Seen::Program { action_ref, .. } => actions.get(&action_ref).copied(),
        Seen::Worker => None,
    })
}

/// When a run ended, as somebody saw it. `marks` are those of its attempt.
fn end_of(facts: &Facts, start: &Mark, marks: &[&Mark]) -> Option<i64> {
    let after = |times: Option<&Vec<i64>>| {
        let times = times?.iter().copied();
        times.filter(|t| *t >= start.t_ns).min()
    };
    let written = |by: Seen| {
        let ends = marks.iter().filter(|mark| mark.is_end && mark.seen == by);
        ends.map(|mark| mark.t_ns).find(|t| *t >= start.t_ns)
    };
    let exit = || match start.seen {
        // A number that others have had too does not tell whose end it was.
        Seen::Program { pid, .. } if !facts.processes.is_known(pid) => {
            facts.processes.exit(pid, start.t_ns)
        }
        Seen::Program { .. } | Seen::Worker => None,
    };
    // Each of these came after the end, so the first says most.
    let seen = || {
        let down = after(facts.taken_down.get(&start.key.0));
        let times = [exit(), down, written(Seen::Worker)];
        times.into_iter().flatten().min()
    };
    written(start.seen).or_else(seen)
}

/// When the owner let go of the slot of a run, or knew that it was over.
fn released(facts: &Facts, start: &Mark) -> Option<i64> {
    let (id, attempt) = start.key;
    let next = || {
        facts
            .grants
            .get(&(id, attempt.next()))
            .map(|grant| grant.t_ns)
    };
    facts.released.get(&start.key).copied().or_else(next)
}

/// Whether the limit of each action was 1 at every grant.
fn always_1(facts: &Facts) -> HashMap<ActionId, bool> {
    let mut always_1 = HashMap::new();
    for (key, grant) in &facts.grants {
        if let Some(action) = facts.execution(key.0).and_then(|known| known.action) {
            *always_1.entry(action).or_insert(true) &= grant.bounds.limit == Some(1);
        }
    }
    always_1
}

/// The runs of each group of an action, by each rule by which they were ever granted: what has been grouped
/// anew meanwhile is in a group by the earlier rule and in one by the later.
fn by_group(facts: &Facts, runs: &[Run]) -> BTreeMap<(i64, GroupKey), Vec<Run>> {
    let rule_of = |run: &Run| facts.grants.get(&run.key)?.bounds.demands;
    let rules: BTreeSet<i64> = runs.iter().filter_map(rule_of).collect();
    let mut groups: BTreeMap<(i64, GroupKey), Vec<Run>> = BTreeMap::new();
    for rule in rules {
        for run in runs {
            if let Some(demand) = facts.demand(run.key.0, rule) {
                groups.entry((rule, demand.group)).or_default().push(*run);
            }
        }
    }
    groups
}

/// Runs are sorted by their start. `limit_of` tells which of the limits is meant, and `of` whose runs.
fn judge_limit(
    facts: &Facts,
    of: &str,
    limit_of: impl Fn(&Bounds) -> Option<u32>,
    runs: &[Run],
    broken: &mut Vec<Violation>,
) {
    let mut ends: Vec<(i64, usize)> = runs
        .iter()
        .enumerate()
        .map(|(index, run)| (run.end_ns, index))
        .collect();
    ends.sort_unstable();
    let mut ends = ends.into_iter().peekable();
    // What is under way, by the number of its grant: the last is the one granted last.
    let mut under_way: BTreeMap<(Option<i64>, usize), Option<u32>> = BTreeMap::new();
    let mut unknown = 0_usize;
    // A next try in a kept slot takes none: it counts as granted when the first one was.
    let slot_of = |index: usize| {
        let (id, mut attempt) = runs[index].key;
        while facts.kept.contains(&(id, Attempt(attempt.0 - 1))) {
            attempt = Attempt(attempt.0 - 1);
        }
        (id, attempt)
    };
    let grant_of = |index: usize| facts.grants.get(&slot_of(index));
    let place = |index: usize| (grant_of(index).map(|grant| grant.grant_no), index);
    for (index, run) in runs.iter().enumerate() {
        while let Some((_, over)) = ends.next_if(|(end, _)| *end <= run.start_ns) {
            under_way.remove(&place(over));
            unknown -= usize::from(grant_of(over).is_none());
        }
        under_way.insert(
            place(index),
            facts
                .limits_of(slot_of(index), run.start_ns)
                .and_then(|bounds| limit_of(&bounds)),
        );
        unknown += usize::from(grant_of(index).is_none());
        let latest = under_way.last_key_value().and_then(|(_, limit)| *limit);
        let limit = latest.filter(|_| unknown == 0);
        if let Some(limit) = limit.filter(|limit| under_way.len() > *limit as usize) {
            let count = under_way.len();
            let what = format!("{count} runs of {of} at once at limit {limit}");
            let records = under_way.keys().map(|(_, index)| runs[*index].record);
            broken.push(violation(
                Promise::I2,
                what,
                records.take(8).chain([run.record]),
            ));
        }
    }
}

/// The same against the limits that were asked for; says how many starts it judged. Runs are
/// sorted by their start.
fn judge_asked_limit(
    facts: &Facts,
    limits: &Limits,
    invoked: &HashMap<ExecutionId, i64>,
    (action, runs): (ActionId, &[Run]),
    broken: &mut Vec<Violation>,
) -> u64 {
    let mut judged = 0;
    let mut ends: BTreeSet<(i64, usize)> = BTreeSet::new();
    for (index, run) in runs.iter().enumerate() {
        while ends.first().is_some_and(|(end, _)| *end <= run.start_ns) {
            ends.pop_first();
        }
        ends.insert((run.end_ns, index));
        let given = facts.slot_given_ns(run.key, run.start_ns);
        let since = given.or_else(|| invoked.get(&run.key.0).copied());
        let limit = since.and_then(|since| limits.most(action, since, run.start_ns));
        judged += u64::from(limit.is_some());
        if let Some(limit) = limit.filter(|limit| ends.len() > *limit as usize) {
            let count = ends.len();
            let what = format!(
                "{count} runs of action {action} at once, and nobody asked for more than {limit}"
            );
            let records = ends.iter().map(|(_, index)| runs[*index].record);
            let records = records.take(8).chain([run.record]);
            broken.push(violation(Promise::I2, what, records));
        }
    }
    judged
}

/// By what the executions of one action that stand in one line are told from others: whoever has another
/// rate or another turn may go before them.
type Line = (Priority, Option<(GroupKey, Flow)>);

/// Runs are sorted by their start.
fn judge_order(facts: &Facts, runs: &[Run], broken: &mut Vec<Violation>) {
    let mut last: HashMap<Line, (ExecutionId, u32)> = HashMap::new();
    let regrouped = facts.rates.who_was_regrouped();
    for run in runs.iter().filter(|run| run.key.1 == Attempt(1)) {
        let id = run.key.0;
        let known = facts.execution(id).filter(|known| !known.delayed);
        let is_moved = facts.operations.moved.contains(&id) || regrouped.contains(&id);
        let Some(known) = known.filter(|_| !is_moved) else {
            continue;
        };
        let Some(priority) = known.priority else {
            continue;
        };
        let apart = known.demand.map(|demand| (demand.rate, demand.flow));
        let latest = last.entry((priority, apart)).or_insert((id, run.record));
        if latest.0 > id {
            let what = format!("execution {} started before {id} at limit 1", latest.0);
            broken.push(violation(Promise::I3, what, [latest.1, run.record]));
        } else {
            *latest = (id, run.record);
        }
    }
}
