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

/// The leases of 16 partitions, which have not moved for a while: `holder` tells who has each.
fn leases(holder: impl Fn(u16) -> Option<OwnerId>, still_for: Millis) -> Vec<SeenLease> {
    let seen = |partition: u16| SeenLease {
        lease: StoredLease {
            partition: PartitionId(partition),
            holder: holder(partition),
            epoch: Epoch(1),
            renewals: 7,
            ttl: PATIENCE,
            wanted_owner: None,
        },
        still_for,
    };
    (0..16).map(seen).collect()
}

/// What an owner that holds nothing would take.
fn taken(me: OwnerId, live: &[OwnerId], leases: &[SeenLease]) -> Vec<PartitionId> {
    let plan = plan(me, live, leases, &BTreeMap::new(), 1_000_000, PATIENCE);
    assert_eq!(plan.hand_over, vec![]);
    let taken = plan.acquire.iter();
    taken.map(|lease| lease.partition).collect()
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
    let live = [me, other];
    let fresh = leases(|_| None, 1_000);
    let mine = taken(me, &live, &fresh);
    let its = taken(other, &live, &fresh);
    assert_eq!((mine.len(), its.len()), (8, 8));
    assert!(mine.iter().all(|partition| !its.contains(partition)));

    // What is handed over to me is taken although the shares give it to somebody else.
    let mut given = fresh.clone();
    given[usize::from(its[0].0)].lease.wanted_owner = Some(me);
    let wanted = taken(me, &live, &given);
    assert!(wanted.contains(&its[0]) && wanted.len() == 9);
    // What was handed over to somebody else is left to it, but not for ever.
    for (still_for, expected) in [(PATIENCE / 3, 7), (PATIENCE / 3 + 1, 8)] {
        let mut given = leases(|_| None, still_for);
        given[usize::from(mine[0].0)].lease.wanted_owner = Some(other);
        assert_eq!(taken(me, &live, &given).len(), expected, "{still_for}");
    }

    let forgotten = leases(|_| None, PATIENCE * 2);
    assert_eq!(taken(me, &live, &forgotten).len(), 16);
}

#[test]
fn what_somebody_owns_is_taken_when_it_has_not_moved_for_its_time_and_a_grace() {
    let (me, other) = (OwnerId::fresh(), OwnerId::fresh());
    let end = is_over_after(PATIENCE);
    assert_eq!(end, 16_000);
    for (still_for, live, expected) in [
        (0, vec![me], 0),
        (end - 1, vec![me], 0),
        (end, vec![me], 16),
        (end, vec![me, other], 8),
        (PATIENCE * 2, vec![me, other], 8),
        (PATIENCE * 2 + 1, vec![me, other], 16),
    ] {
        let leases = leases(|_| Some(other), still_for);
        assert_eq!(taken(me, &live, &leases).len(), expected, "{still_for}");
    }
    // Its own it takes at once: it let it go while the store did not answer.
    assert_eq!(taken(me, &[me], &leases(|_| Some(me), 0)).len(), 16);
}

#[test]
fn what_belongs_to_others_is_handed_over_a_little_at_a_time_and_not_too_soon() {
    let (me, other) = (OwnerId::fresh(), OwnerId::fresh());
    let live = [me, other];
    let start = 1_000_000;
    let all = leases(|_| Some(me), 0);
    let mut mine = held(0..16, start);
    let early = plan(me, &live, &all, &mine, start + PATIENCE / 2, PATIENCE);
    assert_eq!(early.hand_over, vec![]);

    let now = start + PATIENCE;
    for _ in 0..4 {
        let next = plan(me, &live, &all, &mine, now, PATIENCE);
        assert_eq!(next.hand_over.len(), HAND_OVERS_AT_ONCE);
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
