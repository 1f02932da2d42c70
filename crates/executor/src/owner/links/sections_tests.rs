//! What no message could hold goes in parts.

use std::collections::VecDeque;

use attune_core::{Attempt, ExecutionId, Seq};

use super::*;

/// How many bytes a section has at most where a message has four times as many: some four keys.
const MOST: usize = 4 * KEY_BYTES + 1;

fn key(number: u32) -> Key {
    let id = ExecutionId::new(PartitionId(3), Seq::new(Epoch(1), number));
    (id, Attempt(1))
}

fn made(max_bytes: usize, say: impl FnOnce(&mut Sections<'_>)) -> Vec<Section<Dispatch>> {
    let mut stream = Stream::default();
    let of = (PartitionId(3), Epoch(1), OwnerId::fresh());
    let mut sections = Sections::new(&mut stream, of, max_bytes);
    say(&mut sections);
    sections.finish()
}

fn written(keys: &[Key]) -> usize {
    let json = |(id, attempt): &Key| serde_json::json!({"execution_id": id, "attempt": attempt});
    let keys: Vec<serde_json::Value> = keys.iter().map(json).collect();
    serde_json::to_string(&keys).unwrap().len()
}

#[test]
fn only_what_no_message_could_hold_goes_in_parts_that_cover_everything_once() {
    for (max_bytes, many, parts_of_it) in [
        (1_024, 0, 1),
        (1_024, 5, 1),
        (1_024, 100, 20),
        (65_536, 1_500, 1),
        (65_536, 1_501, 2),
        (1_048_576, 24_361, 1),
        (1_048_576, 60_000, 3),
    ] {
        let held: Vec<Key> = (1..=many).map(key).collect();
        let mut mixed = held.clone();
        mixed.reverse();
        let sections = made(max_bytes, |sections| sections.sync(mixed));
        let parts = sections.iter().map(|section| section.sync.as_deref());
        let parts: Vec<&[Key]> = parts.map(Option::unwrap).collect();
        assert_eq!(parts.concat(), held);
        assert_eq!(parts.len(), parts_of_it, "{many} in {max_bytes}");
        let most = (max_bytes / 4).max(max_bytes - FRAME_BYTES);
        for pair in parts.windows(2) {
            let [part, next] = pair else { panic!() };
            assert!(written(part) <= most + 2);
            assert!(written(&[part, &next[..1]].concat()) > most);
        }
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
    let sections = made(4 * MOST, |sections| {
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
        let sync = section.sync.iter().flatten().copied().map(key_bytes);
        let keys = section.settled.len() + section.cancel.len();
        let bytes = keys * KEY_BYTES + section.recall.len() * ACTION_BYTES;
        let bytes = bytes + sync.sum::<usize>();
        assert!(bytes <= MOST, "{bytes}");
        // No key takes more than was reckoned.
        let longest = serde_json::json!({"execution_id": i64::MAX, "attempt": i32::MAX});
        assert!(longest.to_string().len() < KEY_BYTES);
    }
}
