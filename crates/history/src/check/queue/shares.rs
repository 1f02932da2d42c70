//! *I10.* Where slots are shared, nobody is given one while it is surely another flow's turn.
//!
//! On the highest level on which the flows of two differ, whoever is granted must hold no more slots for its
//! weight than the other one, before the grant: then `holds_j / w_j <= holds_i / w_i + cost / w_j` after it.
//! The other one surely waits in the same lane, is first in its class, has room in its group and is counted
//! by no rate of its own. What a flow is worth is what a grant of it says under the same weights.
//!
//! Nothing is said where a holder's demand is not known. With ageing, somebody of a class of whom no record
//! tells may stand in another lane and take its class there, so only a first owner is judged, and while
//! nobody is delayed or was put back. Where groups have a limit only such groups are judged as have one flow:
//! else those of a group share its limit by turns of their own.

use super::*;

/// What is known of the flows of all actions.
pub(super) struct Shares {
    /// What keys are worth, by the mark of the weights and the level.
    weights: HashMap<(i64, usize, GroupKey), u16>,
    /// Of each group its only flow, or nothing where it has more, and the most that any of it takes.
    groups: HashMap<(ActionId, i64, GroupKey), (Option<Flow>, u16)>,
}

impl Shares {
    pub(super) fn of(facts: &Facts) -> Self {
        let mut shares = Self {
            weights: HashMap::new(),
            groups: HashMap::new(),
        };
        if facts.weights.is_empty() {
            return shares;
        }
        for (key, told) in &facts.weights {
            let rule = facts.grants.get(key).and_then(|grant| grant.bounds.demands);
            let demand = rule.and_then(|rule| facts.demand(key.0, rule));
            let keys = demand.iter().flat_map(|demand| demand.flow.keys());
            for ((level, key), weight) in keys.enumerate().zip(&told.of) {
                shares.weights.insert((told.mark, level, key), *weight);
            }
        }
        for (action, demand) in facts.demands() {
            let place = (action, demand.rule, demand.group);
            let first = (Some(demand.flow), demand.cost);
            let (flow, most) = shares.groups.entry(place).or_insert(first);
            *flow = flow.filter(|flow| *flow == demand.flow);
            *most = demand.cost.max(*most);
        }
        shares
    }
}

impl Replay<'_> {
    /// Judges whose turn it was, before whoever is granted a slot holds it.
    pub(super) fn judge_turn(&mut self, record: u32, key: Key, bounds: Bounds, rule: OrderRule) {
        let Some(told) = self.facts.weights.get(&key) else {
            return;
        };
        let (Some(demand), Some(Some(lane))) = (self.demand(key.0), self.lane(key.0)) else {
            return;
        };
        let is_sure = rule == OrderRule::Priority || !self.is_unsure;
        if !is_sure || !demand.rate.is_zero() || self.holders.contains_key(&key.0) {
            return;
        }
        let Some(held) = self.held() else { return };
        let holds = |way: &[GroupKey]| held.get(way).copied().unwrap_or(0);
        let own: Vec<GroupKey> = demand.flow.keys().collect();
        let (mut is_judged, mut passed) = (false, None);
        for (class, lanes) in &self.waiting {
            let Some(class) = class else { continue };
            let Some(first) = self.surely_due((bounds, rule), *class, lanes, lane) else {
                continue;
            };
            let its: Vec<GroupKey> = class.2.keys().collect();
            let mut levels = own.iter().zip(&its);
            let Some(level) = levels.position(|(own, its)| own != its) else {
                continue;
            };
            let weight = self.shares.weights.get(&(told.mark, level, its[level]));
            let (Some(weight), Some(own_weight)) = (weight, told.of.get(level)) else {
                continue;
            };
            is_judged = true;
            let (mine, theirs) = (holds(&own[..=level]), holds(&its[..=level]));
            if mine * u64::from(*weight) > theirs * u64::from(*own_weight) {
                passed = Some((
                    first,
                    [mine, (*own_weight).into(), theirs, (*weight).into()],
                ));
            }
        }
        self.turns += u64::from(is_judged);
        if let Some((first, [mine, own_weight, theirs, weight])) = passed {
            let what = format!(
                "execution {} was given a slot when its flow held {mine} at weight {own_weight}, and that of \
                 {first}, which waited, {theirs} at weight {weight}",
                key.0
            );
            let accepted = self.facts.execution(first).and_then(|known| known.accepted);
            self.break_promise(Promise::I10, what, accepted.into_iter().chain([record]));
        }
    }

    /// What the flows of those who hold a slot take, and all above them; `None` where that is not known of all.
    fn held(&self) -> Option<HashMap<Vec<GroupKey>, u64>> {
        let mut held: HashMap<Vec<GroupKey>, u64> = HashMap::new();
        for id in self.holders.keys() {
            let demand = self.demand(*id)?;
            let mut way = Vec::new();
            for key in demand.flow.keys() {
                way.push(key);
                *held.entry(way.clone()).or_default() += u64::from(demand.cost);
            }
        }
        Some(held)
    }

    /// Whoever of a class surely stands in a lane, first of all of its class, with room in its group.
    fn surely_due(
        &self,
        (bounds, rule): (Bounds, OrderRule),
        class: Class,
        lanes: &Lanes,
        lane: Priority,
    ) -> Option<ExecutionId> {
        let (group, rate, _) = class;
        let first = *lanes.get(&Some(lane))?.first()?;
        let heads = lanes.iter();
        let mut heads = heads.filter_map(|(lane, waiting)| Some((*lane, *waiting.first()?)));
        let is_first =
            heads.all(|it| it.1 == first || self.is_before(rule, (Some(lane), first), it));
        let has_room = |limit: u32| {
            let place = (self.action_id, self.rule.unwrap_or(0), group);
            let known = self.shares.groups.get(&place);
            let alone = known.filter(|(flow, _)| flow.is_some());
            // Who takes more than there is runs alone.
            let fits = |most: u16| {
                let most = u64::from(most).min(limit.into());
                self.used(Some(class)).1 + most <= u64::from(limit)
            };
            alone.is_some_and(|(_, most)| fits(*most))
        };
        (rate.is_zero() && is_first && bounds.group_limit.is_none_or(has_room)).then_some(first)
    }
}
