//! Who waits in one class, in their order.

use std::collections::BTreeMap;

use attune_core::{OrderRule, Priority, Seq};

use super::Member;
use crate::queue::Millis;

/// Where somebody stands in the line of its group: those before all lanes first.
pub(super) type Standing = (Option<Priority>, Seq);

/// Who waits in a group. Of many groups most have one.
#[derive(Debug, Clone, Default)]
pub(super) enum Line {
    #[default]
    Empty,
    One(Member),
    Many(BTreeMap<Standing, (Millis, u16)>),
}

impl Line {
    pub(super) fn insert(&mut self, member: Member) {
        match self {
            Self::Empty => *self = Self::One(member),
            Self::One(first) => {
                let two = [*first, member].map(|member| {
                    let place = (member.lane, member.seq);
                    (place, (member.enqueued_at, member.cost))
                });
                *self = Self::Many(BTreeMap::from(two));
            }
            Self::Many(members) => {
                let place = (member.lane, member.seq);
                members.insert(place, (member.enqueued_at, member.cost));
            }
        }
    }

    pub(super) fn remove(&mut self, (lane, seq): Standing) {
        match self {
            Self::One(member) if member.seq == seq => *self = Self::Empty,
            Self::Many(members) => {
                members.remove(&(lane, seq));
                let last = members.first_key_value().map(member);
                if let Some(last) = last.filter(|_| members.len() == 1) {
                    *self = Self::One(last);
                }
            }
            Self::Empty | Self::One(_) => {}
        }
    }

    /// Those of one lane, in their order.
    pub(super) fn in_lane(&self, lane: Option<Priority>) -> impl Iterator<Item = Member> + '_ {
        let (one, many) = match self {
            Self::Empty => (None, None),
            Self::One(member) => (Some(*member), None),
            Self::Many(members) => (None, Some(members)),
        };
        let (lowest, highest) = (Seq(i64::MIN), Seq(i64::MAX));
        let range = (lane, lowest)..=(lane, highest);
        let many = many.into_iter().flat_map(move |it| it.range(range.clone()));
        let one = one.into_iter().filter(move |it| it.lane == lane);
        one.chain(many.map(member))
    }

    /// The first by the rule of the action.
    pub(super) fn first(&self, rule: OrderRule) -> Option<Member> {
        let members = match self {
            Self::Empty => return None,
            Self::One(member) => return Some(*member),
            Self::Many(members) => members,
        };
        // Within a lane the first stands before all others, whatever the rule.
        let lanes = std::iter::once(None).chain(Priority::ALL.map(Some));
        let heads = lanes.filter_map(|lane| {
            let (lowest, highest) = (Seq(i64::MIN), Seq(i64::MAX));
            let mut lane = members.range((lane, lowest)..=(lane, highest));
            lane.next().map(member)
        });
        heads.min_by_key(|head| head.key(rule))
    }
}

fn member(entry: (&Standing, &(Millis, u16))) -> Member {
    let (&(lane, seq), &(enqueued_at, cost)) = entry;
    Member {
        lane,
        seq,
        cost,
        enqueued_at,
    }
}
