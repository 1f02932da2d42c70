//! What no message could hold goes in parts.

use std::collections::VecDeque;

use attune_core::{Attempt, ExecutionId, Seq};

use super::*;

/// How many bytes a section has at most: some four keys.
const MOST: usize = 4 * KEY_BYTES + 1;

fn key(number: u32) -> Key {
    let id = ExecutionId::new(PartitionId(3), Seq::new(Epoch(1), number));
    (id, Attempt(1))
}

fn made(say: impl FnOnce(&mut Sections<'_>)) -> Vec<Section<Dispatch>> {
    let mut stream = Stream::default();
    let of = (PartitionId(3), Epoch(1), OwnerId::fresh());
    let mut sections = Sections::new(&mut stream, of, MOST);
    say(&mut sections);
    sections.finish()
}

#[test]
fn a_long_sync_goes_in_parts_that_cover_everything_once() {
    for many in [0, 1, 4, 5, 8, 9, 100] {
        let held: Vec<Key> = (1..=many).map(key).collect();
        let mut mixed = held.clone();
        mixed.reverse();
        let sections = made(|sections| sections.sync(mixed));
        let parts = sections.iter().map(|section| section.sync.as_deref());
        let parts: Vec<&[Key]> = parts.map(Option::unwrap).collect();
        assert_eq!(parts.concat(), held);
        assert!(parts.iter().all(|part| part.len() <= 4));
        // Each begins where the one before ends; the first and the last have no bounds.
        let mut after = None;
        for (place, section) in sections.iter().enumerate() {
            assert_eq!(section.number, place as u64);
            assert_eq!(section.sync_after, after);
            let is_last = place + 1 == sections.len();
            let last = parts[place].last().map(|(id, _)| *id);
            assert_eq!(section.sync_to, last.filter(|_| !is_last));
            after = section.sync_to;
        }
    }
}

#[test]
fn what_is_settled_cancelled_and_called_back_goes_in_parts_behind_the_sync() {
    let keys = |from: u32| Vec::from_iter((from..from + 6).map(key));
    let (mut settled, mut cancel) = (keys(100), keys(200));
    let mut recall = BTreeSet::from_iter((1..=30).map(ActionId));
    let sections = made(|sections| {
        sections.sync(keys(1));
        sections.settled(&mut settled);
        sections.grants(&mut VecDeque::new(), usize::MAX, |_| false);
        sections.calls(&mut cancel, &mut recall);
    });
    assert!(settled.is_empty() && cancel.is_empty() && recall.is_empty());
    let all = |of: fn(&Section<Dispatch>) -> &Vec<Key>| {
        Vec::from_iter(sections.iter().flat_map(|section| of(section).clone()))
    };
    assert_eq!(all(|section| &section.settled), keys(100));
    assert_eq!(all(|section| &section.cancel), keys(200));
    let called = sections.iter().flat_map(|section| &section.recall);
    assert!(called.copied().eq((1..=30).map(ActionId)));
    for section in &sections {
        let sync = section.sync.as_ref().map_or(0, Vec::len);
        let keys = sync + section.settled.len() + section.cancel.len();
        let bytes = keys * KEY_BYTES + section.recall.len() * ACTION_BYTES;
        assert!(bytes <= MOST, "{bytes}");
        // No key takes more than was reckoned.
        let longest = serde_json::json!({"execution_id": i64::MAX, "attempt": i32::MAX});
        assert!(longest.to_string().len() < KEY_BYTES);
    }
}
