//! Shares are even, the same for everyone, and hardly move.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn executors() -> impl Strategy<Value = Vec<OwnerId>> {
    let id = any::<u128>().prop_map(|bits| OwnerId(Uuid::from_u128(bits)));
    prop::collection::hash_set(id, 2..12).prop_map(|ids| ids.into_iter().collect())
}

/// How many partitions have another owner in `after` than in `before`, beside those that `left`
/// had before and those that `came` has now.
fn other_moves(
    before: &BTreeMap<PartitionId, OwnerId>,
    after: &BTreeMap<PartitionId, OwnerId>,
    changed: OwnerId,
) -> usize {
    before
        .iter()
        .filter(|(partition, owner)| {
            let new = after[partition];
            new != **owner && new != changed && **owner != changed
        })
        .count()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn shares_are_even(live in executors(), partitions in 1..=256_u16) {
        let shares = shares(&live, partitions);
        prop_assert_eq!(shares.len(), usize::from(partitions));
        let size = |owner| shares.values().filter(|other| **other == owner).count();
        let sizes: Vec<usize> = live.iter().map(|owner| size(*owner)).collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        prop_assert!(most - least <= 1, "{:?}", sizes);
    }

    #[test]
    fn the_order_in_which_executors_are_listed_does_not_matter(live in executors()) {
        let mut other = live.clone();
        other.reverse();
        other.push(live[0]);
        prop_assert_eq!(shares(&live, 16), shares(&other, 16));
    }

    /// Who comes gets its share, and who goes leaves its share; besides, no more than twice the
    /// square root of the number of partitions move (on average it is a sixteenth of them).
    #[test]
    fn little_moves_when_one_comes_or_goes(live in executors(), partitions in 1..=256_u16) {
        let (one, others) = live.split_first().unwrap();
        let (with, without) = (shares(&live, partitions), shares(others, partitions));
        let bound = 2 * usize::from(partitions).isqrt();
        let came = other_moves(&without, &with, *one);
        prop_assert!(came <= bound, "{} of {} moved besides", came, partitions);
        prop_assert_eq!(came, other_moves(&with, &without, *one));
    }
}

#[test]
fn nobody_gets_nothing() {
    assert!(shares(&[], 16).is_empty());
    let alone = OwnerId::fresh();
    assert!(shares(&[alone], 16).values().all(|owner| *owner == alone));
}

const PATIENCE: Millis = 15_000;

/// The leases of 16 partitions: `owner` tells who has each.
fn leases(owner: impl Fn(u16) -> Option<OwnerId>, free_for: Millis) -> Vec<StoredLease> {
    let lease = |partition: u16| StoredLease {
        partition: PartitionId(partition),
        owner: owner(partition),
        remaining: 0,
        free_for,
        wanted_owner: None,
    };
    (0..16).map(lease).collect()
}

/// Leases held since the same moment.
fn held(partitions: impl IntoIterator<Item = u16>, since: Millis) -> BTreeMap<PartitionId, Held> {
    let held = Held {
        epoch: Epoch(1),
        since,
        standing: Standing::Kept,
    };
    partitions
        .into_iter()
        .map(|partition| (PartitionId(partition), held))
        .collect()
}

#[test]
fn each_takes_its_share_of_what_is_free_and_in_the_end_everything() {
    let (me, other) = (OwnerId::fresh(), OwnerId::fresh());
    let (now, live, nothing) = (1_000_000, [me, other], BTreeMap::new());
    let fresh = leases(|_| None, 1_000);
    let mine = plan(me, &live, &fresh, &nothing, now, PATIENCE).acquire;
    let its = plan(other, &live, &fresh, &nothing, now, PATIENCE).acquire;
    assert_eq!((mine.len(), its.len()), (8, 8));
    assert!(mine.iter().all(|partition| !its.contains(partition)));

    // What is handed over to me is taken although the shares give it to somebody else.
    let mut given = fresh.clone();
    given[usize::from(its[0].0)].wanted_owner = Some(me);
    let wanted = plan(me, &live, &given, &nothing, now, PATIENCE).acquire;
    assert!(wanted.contains(&its[0]) && wanted.len() == 9);

    let forgotten = leases(|_| None, PATIENCE * 2);
    let all = plan(me, &live, &forgotten, &nothing, now, PATIENCE).acquire;
    assert_eq!(all.len(), 16);
    let owned = leases(|_| Some(other), 0);
    let none = plan(me, &live, &owned, &nothing, now, PATIENCE);
    assert_eq!(none, Plan::default());
}

#[test]
fn what_belongs_to_others_is_handed_over_a_little_at_a_time_and_not_too_soon() {
    let (me, other) = (OwnerId::fresh(), OwnerId::fresh());
    let live = [me, other];
    let start = 1_000_000;
    let all = leases(|_| Some(me), 0);
    let mut mine = held(0..16, start);
    let early = plan(me, &live, &all, &mine, start + PATIENCE / 2, PATIENCE);
    assert_eq!((early.hand_over, early.unfinished), (vec![], true));

    let now = start + PATIENCE;
    for round in 0..4 {
        let next = plan(me, &live, &all, &mine, now, PATIENCE);
        assert_eq!(next.hand_over.len(), HAND_OVERS_AT_ONCE);
        assert_eq!(next.unfinished, round < 3);
        for (partition, to) in next.hand_over {
            assert_eq!(to, other);
            mine.get_mut(&partition).unwrap().standing = Standing::Leaving { to: Some(to) };
        }
        // Nothing more begins before these have ended.
        let waiting = plan(me, &live, &all, &mine, now, PATIENCE);
        assert_eq!(waiting.hand_over, vec![]);
        mine.retain(|_, lease| lease.standing == Standing::Kept);
    }
    let done = plan(me, &live, &all, &mine, now, PATIENCE);
    assert_eq!((mine.len(), done), (8, Plan::default()));
}
