//! A sorted set that mostly has one member, and allocates nothing for it.

use std::collections::BTreeSet;

/// Nobody, one, or many in their order.
#[derive(Debug, Clone, Default)]
pub(super) enum Few<T> {
    #[default]
    None,
    One(T),
    Many(BTreeSet<T>),
}

impl<T: Ord + Copy> Few<T> {
    pub(super) fn insert(&mut self, item: T) {
        match self {
            Self::None => *self = Self::One(item),
            Self::One(one) if *one == item => {}
            Self::One(one) => *self = Self::Many(BTreeSet::from([*one, item])),
            Self::Many(many) => drop(many.insert(item)),
        }
    }

    pub(super) fn remove(&mut self, item: &T) {
        match self {
            Self::One(one) if one == item => *self = Self::None,
            Self::None | Self::One(_) => {}
            Self::Many(many) => {
                many.remove(item);
                if many.is_empty() {
                    *self = Self::None;
                }
            }
        }
    }

    pub(super) fn first(&self) -> Option<&T> {
        match self {
            Self::None => None,
            Self::One(one) => Some(one),
            Self::Many(many) => many.first(),
        }
    }

    pub(super) fn last(&self) -> Option<&T> {
        match self {
            Self::Many(many) => many.last(),
            _ => self.first(),
        }
    }

    /// The first that is not before `bound`.
    pub(super) fn first_from(&self, bound: &T) -> Option<&T> {
        match self {
            Self::Many(many) => many.range(bound..).next(),
            _ => self.first().filter(|one| *one >= bound),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(one) => (Some(one), None),
            Self::Many(many) => (None, Some(many)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl<T: Ord + Copy> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.insert(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// It is what the sorted set of the standard library is, whatever comes and goes.
        #[test]
        fn it_is_a_sorted_set(steps in prop::collection::vec((any::<bool>(), 0..6_u8, 0..7_u8), 0..40)) {
            let (mut few, mut set) = (Few::default(), BTreeSet::new());
            for (comes, item, bound) in steps {
                if comes {
                    few.insert(item);
                    set.insert(item);
                } else {
                    few.remove(&item);
                    set.remove(&item);
                }
                prop_assert_eq!(few.iter().collect::<Vec<_>>(), set.iter().collect::<Vec<_>>());
                prop_assert_eq!((few.first(), few.last()), (set.first(), set.last()));
                prop_assert_eq!(few.is_empty(), set.is_empty());
                prop_assert_eq!(few.first_from(&bound), set.range(bound..).next());
            }
        }
    }
}
