//! Who stands before whom.

use super::*;

impl Replay<'_> {
    /// Who surely stands before an execution that is granted a slot, and could have had it.
    pub(super) fn passed(
        &self,
        bounds: Bounds,
        rule: OrderRule,
        id: ExecutionId,
    ) -> Option<ExecutionId> {
        let own = self.group(id);
        // Others may have used up their rate, and then it is not for their group to say who is first; and
        // where slots are shared it is another one's turn.
        let is_apart = own.is_some_and(|(_, rate, flow)| !rate.is_zero() || !flow.is_none());
        let unknown = if self.is_unsure {
            self.most_demanded
        } else {
            1
        };
        let has_room = |group, lanes| !is_apart && self.has_room(bounds, group, lanes, unknown);
        let mut groups = self.waiting.iter().filter(|(group, lanes)| {
            bounds.demands.is_none()
                || (group.is_some() && (**group == own || has_room(**group, *lanes)))
        });
        groups.find_map(|(_, lanes)| self.passed_in(lanes, rule, id))
    }

    fn passed_in(&self, lanes: &Lanes, rule: OrderRule, id: ExecutionId) -> Option<ExecutionId> {
        let its_lane = self.lane(id)?;
        // Within a priority the first stands before all others, whatever the rule; and so does the first
        // whose time can be compared among those.
        let own = self
            .epoch
            .map(|epoch| ExecutionId::new(id.partition(), Seq::new(epoch, 0)));
        let heads = lanes.iter();
        let mut heads = heads.flat_map(|(lane, waiting)| {
            let own = own.and_then(|own| waiting.range(own..).next());
            let heads = waiting.first().into_iter().chain(own);
            heads.map(|head| (*lane, *head))
        });
        let passed = heads.find(|head| self.is_before(rule, *head, (its_lane, id)));
        passed.map(|(_, first)| first)
    }

    pub(super) fn is_before(
        &self,
        rule: OrderRule,
        (lane, first): (Lane, ExecutionId),
        (other_lane, second): (Lane, ExecutionId),
    ) -> bool {
        if lane == other_lane {
            return first < second;
        }
        let (Some(lane), Some(other_lane)) = (lane, other_lane) else {
            return lane.is_none();
        };
        match rule {
            OrderRule::Priority => lane < other_lane,
            OrderRule::Fifo => first < second,
            OrderRule::Ageing { step } => {
                let at = |id| self.facts.execution(id).and_then(|known| known.at);
                let (Some(one), Some(other)) = (at(first), at(second)) else {
                    return false;
                };
                let is_own = |id: ExecutionId| Some(id.seq().epoch()) == self.epoch;
                let key = |at: i64, lane: Priority| at + i64::from(step) * i64::from(lane.rank());
                !self.is_contradictory
                    && is_own(first)
                    && is_own(second)
                    && (key(one, lane), first) < (key(other, other_lane), second)
            }
        }
    }
}
