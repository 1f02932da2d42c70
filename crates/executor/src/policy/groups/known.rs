//! Classes by what tells them apart. That stands in each class already, so the table has their numbers alone:
//! with a million classes of one, keys in the table took a quarter of all memory.

use std::hash::{BuildHasher, Hash};

use foldhash::quality::RandomState;
use hashbrown::HashTable;

use super::Group;

/// Finds classes by key. Each method is told how to read the key of a class that is there.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    table: HashTable<Group>,
    state: RandomState,
}

impl Known {
    pub(super) fn get<K: Hash + Eq>(&self, key: &K, key_of: impl Fn(Group) -> K) -> Option<Group> {
        let hash = self.state.hash_one(key);
        let found = self.table.find(hash, |group| key_of(*group) == *key);
        found.copied()
    }

    /// A class is there from now on. None with its key was.
    pub(super) fn insert<K: Hash + Eq>(&mut self, group: Group, key_of: impl Fn(Group) -> K) {
        let hash = |group: &Group| self.state.hash_one(key_of(*group));
        self.table.insert_unique(hash(&group), group, hash);
    }

    /// A class is there no longer; its key can still be read.
    pub(super) fn remove<K: Hash + Eq>(&mut self, group: Group, key_of: impl Fn(Group) -> K) {
        let hash = self.state.hash_one(key_of(group));
        if let Ok(found) = self.table.find_entry(hash, |it| *it == group) {
            found.remove();
        }
    }
}
