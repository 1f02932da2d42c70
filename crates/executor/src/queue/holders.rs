//! Who is granted in a queue, by execution.
//!
//! Most of many queues have one holder at a time. It stands in the queue itself: a node of a map has
//! room for eleven, 1.4 KB, and would be allocated and freed for every execution of such a queue.

use std::collections::BTreeMap;

use attune_core::ExecutionId;

use super::entry::Holder;

/// A map from executions to how they are granted, in the order of their ids.
#[derive(Debug, Clone, Default)]
pub(super) enum Holders {
    /// Nobody is granted.
    #[default]
    None,
    /// One is.
    One(ExecutionId, Holder),
    /// More than one are, or were since somebody was.
    Many(BTreeMap<ExecutionId, Holder>),
}

impl Holders {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(..) => 1,
            Self::Many(many) => many.len(),
        }
    }

    pub(super) fn get(&self, id: ExecutionId) -> Option<&Holder> {
        match self {
            Self::One(one, holder) if *one == id => Some(holder),
            Self::None | Self::One(..) => None,
            Self::Many(many) => many.get(&id),
        }
    }

    pub(super) fn get_mut(&mut self, id: ExecutionId) -> Option<&mut Holder> {
        match self {
            Self::One(one, holder) if *one == id => Some(holder),
            Self::None | Self::One(..) => None,
            Self::Many(many) => many.get_mut(&id),
        }
    }

    /// Puts a holder in the place of what was there of its execution.
    pub(super) fn insert(&mut self, id: ExecutionId, holder: Holder) {
        match self {
            Self::Many(many) => drop(many.insert(id, holder)),
            Self::One(one, first) if *one != id => {
                *self = Self::Many(BTreeMap::from([(*one, *first), (id, holder)]));
            }
            Self::None | Self::One(..) => *self = Self::One(id, holder),
        }
    }

    pub(super) fn remove(&mut self, id: ExecutionId) -> Option<Holder> {
        match self {
            Self::One(one, holder) if *one == id => {
                let holder = *holder;
                *self = Self::None;
                Some(holder)
            }
            Self::None | Self::One(..) => None,
            Self::Many(many) => {
                let holder = many.remove(&id);
                if many.is_empty() {
                    *self = Self::None;
                }
                holder
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ExecutionId, &Holder)> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(id, holder) => (Some((*id, holder)), None),
            Self::Many(many) => (None, Some(many)),
        };
        let many = many.into_iter().flatten();
        one.into_iter()
            .chain(many.map(|(id, holder)| (*id, holder)))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Holder> {
        self.iter().map(|(_, holder)| holder)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Holder> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(_, holder) => (Some(holder), None),
            Self::Many(many) => (None, Some(many)),
        };
        let many = many.into_iter().flat_map(BTreeMap::values_mut);
        one.into_iter().chain(many)
    }
}

#[cfg(test)]
mod tests {
    use attune_core::{Attempt, Priority};
    use proptest::prelude::*;

    use super::super::entry::Waiting;
    use super::*;
    use crate::policy::Share;
    use crate::queue::ahead::holder_of;

    fn holder(id: i64) -> Holder {
        let waiting = Waiting {
            execution_id: ExecutionId(id),
            seq: ExecutionId(id).seq(),
            enqueued_at: id,
            eligible_at: id,
            attempt: Attempt(0),
            unbegun: 0,
            delayed: false,
            front: false,
            share: Share::default(),
        };
        holder_of(Priority::Normal, &waiting)
    }

    proptest! {
        /// They are what the map of the standard library is, whoever comes, changes and goes.
        #[test]
        fn they_are_a_map(steps in prop::collection::vec((0..4_u8, 0..5_i64, 0..9_i64), 0..40)) {
            let (mut holders, mut map) = (Holders::default(), BTreeMap::new());
            for (step, id, time) in steps {
                let id = ExecutionId(id);
                match step {
                    0 => {
                        let holder = Holder { enqueued_at: time, ..holder(id.0) };
                        holders.insert(id, holder);
                        map.insert(id, holder);
                    }
                    1 => prop_assert_eq!(holders.remove(id), map.remove(&id)),
                    2 => {
                        let found = holders.get_mut(id).map(|holder| holder.eligible_at = time);
                        let expected = map.get_mut(&id).map(|holder| holder.eligible_at = time);
                        prop_assert_eq!(found, expected);
                    }
                    _ => {
                        holders.values_mut().for_each(|holder| holder.enqueued_at += time);
                        map.values_mut().for_each(|holder| holder.enqueued_at += time);
                    }
                }
                let all = map.iter().map(|(id, holder)| (*id, holder));
                prop_assert!(holders.iter().eq(all));
                prop_assert!(holders.values().eq(map.values()));
                prop_assert_eq!(holders.len(), map.len());
                prop_assert_eq!(holders.get(id), map.get(&id));
            }
        }
    }
}
