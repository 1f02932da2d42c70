//! What is reported, and when.

use attune_core::{ActionId, Attempt, Epoch, ExecutionId, OwnerId, PartitionId, Seq};

use super::lanes_tests::Job;
use crate::{Entries, Granted, Key, Millis, Report, Section};

fn one() -> OwnerId {
    OwnerId("00000000-0000-0000-0000-000000000001".parse().unwrap())
}

fn two() -> OwnerId {
    OwnerId("00000000-0000-0000-0000-000000000002".parse().unwrap())
}

fn key(partition: u16, n: u32) -> Key {
    let id = ExecutionId::new(PartitionId(partition), Seq::new(Epoch(1), n));
    (id, Attempt(1))
}

/// A grant of the action that has the number of the partition.
fn job(partition: u16, n: u32) -> Job {
    Job(key(partition, n), ActionId(i64::from(partition)), None)
}

fn section(partition: u16, epoch: i64, number: u64, owner: OwnerId) -> Section<Job> {
    let mut section = Section::new(PartitionId(partition), Epoch(epoch), number, owner);
    section.sync = (number == 0).then(Vec::new);
    section
}

/// A section of partition 0 in its first epoch.
fn told(number: u64, grants: &[u32]) -> Section<Job> {
    let mut section = section(0, 1, number, one());
    section.grants = grants.iter().map(|n| job(0, *n)).collect();
    section
}

/// A life with two slots that was told this at first.
fn with(first: Section<Job>) -> Entries<Job> {
    let mut entries = Entries::new(2);
    assert!(entries.take(0, first).taken);
    entries
}

fn returned(reports: &[Report]) -> Vec<Key> {
    let all = reports.iter().flat_map(|report| &report.returned);
    all.map(|returned| returned.key).collect()
}

fn started(reports: &[Report]) -> Vec<(Key, Millis)> {
    let all = reports.iter().flat_map(|report| &report.started);
    all.map(|started| (started.key, started.age)).collect()
}

#[test]
fn a_run_is_told_once_and_again_after_a_sync() {
    let mut entries = with(told(0, &[1]));
    entries.begin_next(10).unwrap();
    assert_eq!(entries.reports(109), []);
    assert_eq!(started(&entries.reports(110)), [(key(0, 1), 100)]);
    assert_eq!(entries.reports(5_000), []);
    let mut sync = told(1, &[]);
    sync.sync = Some(vec![key(0, 1)]);
    assert!(entries.take(5_000, sync).taken);
    assert_eq!(started(&entries.reports(5_001)), [(key(0, 1), 4_991)]);
    assert_eq!(entries.reports(9_000), []);
}

/// What waits for its start at a worker that can start nothing does not run.
#[test]
fn a_run_that_waits_for_its_start_counts_from_when_it_begins() {
    let mut entries = with(told(0, &[1]));
    entries.begin_next(10).unwrap();
    for now in [50, 100, 150] {
        entries.put_off(key(0, 1), now);
        assert_eq!(started(&entries.reports(now + 40)), []);
    }
    assert_eq!(started(&entries.reports(260)), [(key(0, 1), 110)]);
    entries.put_off(key(0, 1), 300);
    assert_eq!(started(&entries.reports(500)), [], "that is said once");
    entries.put_off(key(0, 2), 300);
}

#[test]
fn what_has_ended_early_is_never_told() {
    let mut entries = with(told(0, &[1]));
    entries.begin_next(0).unwrap();
    entries.end(key(0, 1));
    assert_eq!(entries.reports(1_000), []);
}

#[test]
fn what_is_given_back_is_told_until_it_is_settled_and_always_whole() {
    let mut entries = with(told(0, &[1, 2]));
    entries.give_back_all("it stops");
    assert!(entries.has_news());
    assert_eq!(returned(&entries.reports(10)), [key(0, 1), key(0, 2)]);
    assert!(!entries.has_news());
    assert_eq!(entries.reports(2_009), []);
    assert_eq!(returned(&entries.reports(2_010)), [key(0, 1), key(0, 2)]);
    // What follows comes back, at once, and with everything before it.
    assert!(entries.take(2_020, told(1, &[3])).taken);
    assert!(entries.has_news());
    let all = [key(0, 1), key(0, 2), key(0, 3)];
    assert_eq!(returned(&entries.reports(2_020)), all);
    let mut settled = told(2, &[4]);
    settled.settled = all.to_vec();
    assert!(entries.take(2_030, settled).taken);
    assert_eq!(entries.reports(9_000), []);
    assert_eq!(entries.begin_next(9_000), Some(job(0, 4)));
}

#[test]
fn what_was_settled_before_it_was_told_is_no_news() {
    let mut entries = with(told(0, &[1]));
    entries.give_back_all("it stops");
    let mut settled = told(1, &[]);
    settled.settled = vec![key(0, 1)];
    entries.take(10, settled);
    assert_eq!(entries.reports(10), []);
    assert!(!entries.has_news());
}

#[test]
fn a_return_is_told_to_its_owner_alone() {
    let mut entries = with(told(0, &[1]));
    entries.take(0, section(1, 1, 0, two()));
    entries.give_back_all("it stops");
    let reports = entries.reports(10);
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].owner, one());
}

#[test]
fn a_new_link_asks_for_everything_and_tells_again_what_is_given_back() {
    let mut entries = with(told(0, &[1]));
    entries.give_back_all("it stops");
    entries.reports(10);
    entries.link_is_new();
    assert!(entries.has_news());
    let reports = entries.reports(11);
    assert_eq!(returned(&reports), [key(0, 1)]);
    assert_eq!(reports[0].resync, [PartitionId(0)]);
}

#[test]
fn others_are_told_when_what_they_do_not_see_changes() {
    let mut entries = with(told(0, &[1, 2]));
    entries.take(0, section(1, 1, 0, two()));
    let elsewhere = |reports: Vec<Report>| -> Vec<(OwnerId, u32)> {
        let all = reports.into_iter();
        all.map(|report| (report.owner, report.elsewhere)).collect()
    };
    assert_eq!(elsewhere(entries.reports(20)), [(two(), 2)]);
    assert_eq!(elsewhere(entries.reports(1_000)), []);
    entries.begin_next(1_000).unwrap();
    entries.end(key(0, 1));
    assert_eq!(elsewhere(entries.reports(1_001)), [(two(), 1)]);
    // Not more often than every 20 ms.
    entries.begin_next(1_001).unwrap();
    entries.end(key(0, 2));
    assert!(entries.awaits(), "it is yet to be told");
    assert_eq!(elsewhere(entries.reports(1_020)), []);
    assert_eq!(elsewhere(entries.reports(1_021)), [(two(), 0)]);
    assert_eq!(elsewhere(entries.reports(2_000)), []);
}

/// A run is told again behind a sync, in the millisecond in which everything that was given back was told.
#[test]
fn a_report_has_nothing_that_was_given_back_or_all_of_it() {
    let mut entries = with(told(0, &[1]));
    entries.begin_next(0).unwrap();
    let many = Vec::from_iter(2..40);
    assert!(entries.take(0, told(1, &many)).taken);
    entries.give_back_all("it stops");
    let all = Vec::from_iter(many.iter().map(|n| key(0, *n)));
    assert_eq!(returned(&entries.reports(200)), all);
    for number in 2..40 {
        // The sync of a run alone, as it stands in a part of its own.
        let mut part = told(number, &[]);
        part.sync = Some(vec![key(0, 1)]);
        part.sync_to = Some(key(0, 1).0);
        assert!(entries.take(200, part).taken);
        let reports = entries.reports(200);
        assert_eq!(started(&reports), [(key(0, 1), 200)]);
        assert_eq!(returned(&reports), []);
    }
}

#[test]
fn a_missing_section_is_asked_for_until_a_sync_comes() {
    let mut entries = with(told(0, &[]));
    assert!(!entries.take(0, told(2, &[2])).taken);
    assert!(entries.has_news());
    let resync = |reports: Vec<Report>| -> Vec<(OwnerId, Vec<PartitionId>)> {
        let all = reports.into_iter();
        all.map(|report| (report.owner, report.resync)).collect()
    };
    let asks = [(one(), vec![PartitionId(0)])];
    assert_eq!(resync(entries.reports(0)), asks);
    assert!(!entries.has_news());
    assert_eq!(resync(entries.reports(499)), []);
    assert_eq!(resync(entries.reports(500)), asks);
    let mut sync = told(3, &[]);
    sync.sync = Some(vec![key(0, 2)]);
    assert!(entries.take(600, sync).taken);
    let reports = entries.reports(1_000);
    assert_eq!(returned(&reports), [key(0, 2)]);
    assert_eq!(resync(reports), [(one(), vec![])]);
    // The copy of what was lost comes late.
    assert!(!entries.take(1_000, told(2, &[2])).taken);
    assert_eq!(entries.begin_next(1_000), None);
}

/// Who owned the partition before may be heard after its next owner: it knows nothing of what is missing.
#[test]
fn what_is_missing_of_a_later_epoch_is_asked_for_whatever_an_earlier_one_says() {
    let mut entries = with(told(0, &[]));
    assert!(!entries.take(0, section(0, 3, 1, two())).taken);
    assert!(
        entries.take(0, told(1, &[])).taken,
        "it is the next of its stream"
    );
    assert!(!entries.take(0, told(3, &[])).taken);
    assert!(!entries.take(0, section(0, 2, 1, one())).taken);
    let reports = entries.reports(500);
    assert_eq!(reports.len(), 1);
    assert_eq!(
        (reports[0].owner, &*reports[0].resync),
        (two(), &[PartitionId(0)][..])
    );
    let mut nobody = Entries::<Job>::new(1);
    nobody.take(0, section(0, 3, 1, two()));
    nobody.take(0, section(0, 2, 1, one()));
    assert_eq!(nobody.reports(0)[0].owner, two());
}

#[test]
fn what_waits_for_long_at_a_full_worker_goes_back_with_its_action() {
    let mut entries = with(told(0, &[1, 2]));
    entries.begin_next(0).unwrap();
    assert!(entries.take(10, told(1, &[3])).taken);
    entries.give_back_late(1_000, 0);
    assert_eq!(entries.waiting(), 2, "a slot is free");
    entries.begin_next(1_000).unwrap();
    assert!(entries.take(1_000, told(2, &[4])).taken);
    let mut other = section(1, 1, 0, two());
    other.grants = vec![job(1, 5)];
    assert!(entries.take(1_000, other).taken);
    entries.give_back_late(1_001, 0);
    assert_eq!(returned(&entries.reports(1_001)), [key(0, 3), key(0, 4)]);
    assert_eq!(entries.waiting(), 1, "it is of another action");
    entries.give_back_late(1_099, 0);
    assert_eq!(entries.waiting(), 1);
    entries.give_back_late(1_100, 0);
    assert_eq!(entries.waiting(), 0);
    assert_eq!(entries.running(), 2);
}

/// A slot was taken back by force, and its program does not end.
#[test]
fn what_waits_for_long_behind_a_run_that_is_held_no_more_goes_back() {
    let mut entries = with(told(0, &[1]));
    entries.begin_next(0).unwrap();
    assert!(entries.take(10, told(1, &[2])).taken);
    entries.give_back_late(200, 0);
    assert_eq!(entries.waiting(), 1, "a slot is free");
    entries.give_back_late(300, 1);
    assert_eq!(returned(&entries.reports(300)), [key(0, 2)]);
}

#[test]
fn what_could_not_begin_takes_the_rest_of_its_action_back() {
    let mut first = told(0, &[1, 2]);
    first.grants.push(Job(key(0, 3), ActionId(7), None));
    let mut entries = with(first);
    let given = entries.begin_next(0).unwrap();
    entries.give_up(given.key(), "its program cannot be started");
    assert_eq!(returned(&entries.reports(0)), [key(0, 1), key(0, 2)]);
    assert_eq!(entries.begin_next(0).map(|job| job.key()), Some(key(0, 3)));
    assert_eq!(entries.begin_next(0), None);
}

/// What a section grants waits behind what its sync finds lost.
#[test]
fn a_grant_beside_a_sync_does_not_overtake_what_was_lost() {
    let mut entries = with(told(0, &[]));
    let mut sync = told(2, &[2]);
    sync.sync = Some(vec![key(0, 1)]);
    assert!(entries.take(0, sync).taken);
    assert_eq!(entries.begin_next(0), None);
    assert_eq!(returned(&entries.reports(0)), [key(0, 1), key(0, 2)]);
}
