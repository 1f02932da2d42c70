//! Who stands first in an order: of each priority, and of all.

use attune_core::{Bug, OrderRule, Priority};

use super::Order;
use crate::queue::Waiting;

impl Order {
    /// Who stands first.
    pub(crate) fn first(&self, rule: OrderRule) -> Option<(Priority, Waiting)> {
        if let Some(front) = &self.front {
            return front.first();
        }
        let lane = &self.lanes[self.first_lane(rule)?];
        Some((lane.priority, lane.first()?))
    }

    /// Takes the first in order.
    pub(crate) fn pop_first(&mut self, rule: OrderRule) -> Option<(Priority, Waiting)> {
        if let Some(front) = &self.front {
            let (_, first) = front.first()?;
            return self.remove(first.seq);
        }
        let first = self.first_lane(rule)?;
        let lane = &mut self.lanes[first];
        let first = lane.first()?;
        Some((lane.priority, lane.remove(first.seq)?))
    }

    /// In which lane whoever is next stands, of those that are behind nobody in front.
    fn first_lane(&self, rule: OrderRule) -> Option<usize> {
        let lanes = self.lanes.iter().enumerate();
        let mut lanes = lanes.filter(|(_, lane)| !lane.is_empty());
        let (first, _) = match rule {
            OrderRule::Priority => lanes.next(),
            _ if Bug::NoAgeing.is_planted() => lanes.next(),
            _ => lanes.min_by_key(|(_, lane)| lane.first().map(|first| lane.key(rule, &first))),
        }?;
        Some(first)
    }

    /// The first of those who go before all others, and of each priority, the highest priority first.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (Priority, Waiting)> + '_ {
        let front = self.front.iter().filter_map(|front| front.first());
        let lanes = self.lanes.iter();
        front.chain(lanes.filter_map(|lane| Some((lane.priority, lane.first()?))))
    }
}
