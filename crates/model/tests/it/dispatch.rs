//! The protocol holds within these bounds, and without any of its rules it does not. The figures
//! are asserted so that a change of the model is seen: whoever means it writes the new ones down.

use attune_model::dispatch::{
    Bounds, Breach, Faults, Knowledge, Protocol, Variant, Verdict, check,
};

/// One slot and two executions, without a lane.
const PLAIN: Bounds = Bounds {
    executions: 2,
    limit: 1,
    ahead: 0,
    knowledge: Knowledge::Asked,
    faults: Faults::NONE,
};

/// One slot and three executions, one of them ahead of its slot.
const LANE_OF_2: Bounds = Bounds {
    executions: 3,
    ahead: 1,
    ..PLAIN
};

/// One slot and three executions, all granted at once.
const LANE_OF_3: Bounds = Bounds {
    ahead: 2,
    ..LANE_OF_2
};

/// Two slots and three executions, all granted at once.
const LANE_OF_3_AT_LIMIT_2: Bounds = Bounds {
    limit: 2,
    ..LANE_OF_2
};

/// Some 300 bytes each: less than half a gigabyte.
const MOST_STATES: usize = 800_000;

fn run(variant: Variant, bounds: Bounds, faults: Faults) -> Verdict {
    let bounds = Bounds { faults, ..bounds };
    let verdict = check(Protocol { variant, bounds }, MOST_STATES);
    println!(
        "{variant:?}, {bounds:?}: {} states, {:?}, {} stuck, {:?}",
        verdict.states, verdict.breach, verdict.stuck, verdict.elapsed
    );
    for step in &verdict.way {
        println!("    {step:?}");
    }
    verdict
}

/// Owners learn by reports what was seen.
fn reported(bounds: Bounds) -> Bounds {
    Bounds {
        knowledge: Knowledge::Reported,
        ..bounds
    }
}

/// Whole and safe, everything can finish, and so many different states.
#[track_caller]
fn holds(bounds: Bounds, faults: Faults, states: usize) {
    let verdict = run(Variant::Full, bounds, faults);
    assert_eq!(
        (verdict.breach, verdict.stuck, verdict.whole),
        (None, 0, true)
    );
    assert_eq!(verdict.states, states);
}

/// The breach that is nearest, after so many steps.
#[track_caller]
fn breaks(variant: Variant, bounds: Bounds, faults: Faults, breach: Breach, steps: usize) {
    let verdict = run(variant, bounds, faults);
    assert_eq!((verdict.breach, verdict.way.len()), (Some(breach), steps));
}

/// Safe, but so many states can never finish.
#[track_caller]
fn sticks(variant: Variant, bounds: Bounds, faults: Faults, states: usize) {
    let verdict = run(variant, bounds, faults);
    assert_eq!(
        (verdict.breach, verdict.stuck, verdict.whole),
        (None, states, true)
    );
}

const NONE: Faults = Faults::NONE;
const TAKEOVER: Faults = Faults {
    takeovers: 1,
    ..NONE
};
const DEATH: Faults = Faults { deaths: 1, ..NONE };
const LOSS: Faults = Faults { losses: 1, ..NONE };
const RETURN: Faults = Faults { returns: 1, ..NONE };

#[test]
fn the_protocol_holds_under_one_fault_of_each_kind() {
    let faults = Faults {
        deaths: 1,
        losses: 1,
        doublings: 1,
        returns: 1,
        ..TAKEOVER
    };
    holds(PLAIN, faults, 616_776);
}

#[test]
fn losses_and_doublings_are_harmless_to_a_lane() {
    let faults = Faults {
        losses: 2,
        doublings: 2,
        ..NONE
    };
    holds(Bounds { ahead: 1, ..PLAIN }, faults, 125_423);
}

#[test]
fn a_takeover_is_harmless_to_a_lane() {
    let lane = Bounds { ahead: 1, ..PLAIN };
    holds(LANE_OF_2, TAKEOVER, 19_962);
    let syncs = 1;
    holds(lane, Faults { syncs, ..TAKEOVER }, 101_577);
    let losses = 1;
    holds(lane, Faults { losses, ..TAKEOVER }, 206_671);
}

#[test]
fn a_takeover_and_a_return_are_harmless_to_a_lane() {
    let returns = 1;
    let faults = Faults {
        returns,
        ..TAKEOVER
    };
    holds(LANE_OF_2, faults, 674_850);
}

#[test]
fn a_loss_a_return_and_a_death_are_harmless_to_a_longer_lane() {
    holds(LANE_OF_3, LOSS, 35_273);
    holds(LANE_OF_3, RETURN, 15_903);
    holds(LANE_OF_3, DEATH, 3_248);
}

#[test]
fn a_death_a_return_and_a_takeover_are_harmless_with_a_limit_of_two() {
    holds(LANE_OF_3_AT_LIMIT_2, DEATH, 8_466);
    holds(LANE_OF_3_AT_LIMIT_2, RETURN, 27_517);
    holds(LANE_OF_3_AT_LIMIT_2, TAKEOVER, 131_885);
}

#[test]
fn a_takeover_and_a_death_are_harmless_with_a_limit_of_two() {
    let faults = Faults {
        deaths: 1,
        ..TAKEOVER
    };
    holds(LANE_OF_3_AT_LIMIT_2, faults, 490_093);
}

#[test]
fn reports_of_what_was_seen_are_enough() {
    holds(reported(Bounds { ahead: 1, ..PLAIN }), LOSS, 3_716);
    holds(reported(LANE_OF_2), TAKEOVER, 42_523);
    let returns = 2;
    holds(reported(LANE_OF_2), Faults { returns, ..NONE }, 64_761);
    holds(reported(LANE_OF_3), LOSS, 55_186);
    holds(reported(LANE_OF_3), DEATH, 7_618);
    holds(reported(LANE_OF_3_AT_LIMIT_2), DEATH, 19_004);
    holds(reported(LANE_OF_3_AT_LIMIT_2), RETURN, 75_935);
}

#[test]
fn reports_of_what_was_seen_are_enough_under_three_faults() {
    let faults = Faults {
        losses: 1,
        returns: 1,
        ..DEATH
    };
    holds(reported(Bounds { ahead: 1, ..PLAIN }), faults, 156_970);
}

#[test]
fn w1_sections_are_taken_by_number() {
    let faults = Faults {
        doublings: 1,
        ..RETURN
    };
    let variant = Variant::TakesAnyNumber;
    breaks(variant, LANE_OF_2, faults, Breach::OutOfOrder, 4);
}

#[test]
fn w1_a_section_waits_for_those_before_it() {
    let variant = Variant::TakesLaterSections;
    breaks(variant, LANE_OF_2, LOSS, Breach::OutOfOrder, 4);
}

#[test]
fn w1_epochs_that_are_over_say_nothing() {
    let variant = Variant::TakesOldEpochs;
    breaks(variant, PLAIN, TAKEOVER, Breach::AboveLimit, 14);
}

#[test]
fn w1_a_stream_begins_with_its_sync() {
    let faults = Faults {
        losses: 1,
        ..TAKEOVER
    };
    let bounds = Bounds { ahead: 1, ..PLAIN };
    let variant = Variant::OpensWithoutSync;
    breaks(variant, bounds, faults, Breach::OutOfOrder, 6);
}

#[test]
fn w2_what_is_lacking_or_given_back_is_kept_until_it_is_settled() {
    let faults = Faults {
        takeovers: 1,
        losses: 1,
        ..RETURN
    };
    let variant = Variant::ForgetsReturned;
    breaks(variant, LANE_OF_2, faults, Breach::OutOfOrder, 6);
}

#[test]
fn w3_a_grant_after_a_return_is_returned_too() {
    let variant = Variant::TakesBesideReturned;
    breaks(variant, LANE_OF_2, RETURN, Breach::OutOfOrder, 6);
}

#[test]
fn w4_a_worker_keeps_to_the_slots_of_the_lane() {
    let variant = Variant::StartsWholeLane;
    breaks(variant, LANE_OF_2, NONE, Breach::AboveLimit, 6);
}

#[test]
fn w4_a_worker_looks_at_its_deadline_before_a_start() {
    let variant = Variant::StartsAfterDeadline;
    breaks(variant, PLAIN, DEATH, Breach::AboveLimit, 9);
}

#[test]
fn w5_all_that_waits_is_given_back() {
    let variant = Variant::ReturnsOne;
    breaks(variant, LANE_OF_3, RETURN, Breach::OutOfOrder, 6);
}

#[test]
fn w6_an_end_is_kept_until_it_is_settled() {
    let variant = Variant::ForgetsReported;
    breaks(variant, PLAIN, TAKEOVER, Breach::BegunGivenBack, 10);
}

#[test]
fn w6_an_end_is_reported_until_it_is_settled() {
    sticks(Variant::ReportsOnce, PLAIN, LOSS, 4);
}

/// One by one, an old return keeps new grants coming back: they go to and fro for ever.
#[test]
fn w6_returns_are_reported_as_a_whole() {
    let losses = 2;
    let bounds = Bounds { ahead: 1, ..PLAIN };
    let faults = Faults { losses, ..NONE };
    sticks(Variant::ReturnsOneByOne, bounds, faults, 3_199);
}

/// Found by this model: a report that shows that all was seen lifts the mark of O3, and if it does
/// not say what came back, the next grant comes back as well.
#[test]
fn w6_what_was_seen_is_told_with_all_that_is_returned() {
    let bounds = Bounds { ahead: 1, ..PLAIN };
    sticks(Variant::TellsSeenAlone, reported(bounds), LOSS, 614);
}

#[test]
fn o1_an_owner_settles_after_its_commit() {
    let variant = Variant::SettlesFirst;
    breaks(variant, PLAIN, TAKEOVER, Breach::BegunGivenBack, 12);
}

#[test]
fn o1_a_commit_checks_the_epoch() {
    let variant = Variant::NoFence;
    breaks(variant, PLAIN, TAKEOVER, Breach::HolderKilled, 6);
}

#[test]
fn o2_every_grant_has_a_new_attempt_number() {
    let returns = 2;
    let faults = Faults { returns, ..NONE };
    let variant = Variant::SameAttempt;
    breaks(variant, PLAIN, faults, Breach::BegunGivenBack, 10);
}

#[test]
fn o3_a_lane_is_with_the_worker_that_has_all_slots() {
    let variant = Variant::SpreadsLane;
    breaks(variant, LANE_OF_2, NONE, Breach::OutOfOrder, 4);
}

/// Without this the owner and the worker miss each other for ever, as with returns one by one.
#[test]
fn o3_nothing_is_granted_again_before_the_worker_has_seen_what_was_sent() {
    let bounds = Bounds { ahead: 1, ..PLAIN };
    sticks(Variant::GrantsUnseen, bounds, LOSS, 283);
    sticks(Variant::GrantsUnseen, reported(bounds), LOSS, 589);
}

#[test]
fn o4_a_report_counts_for_the_attempt_that_it_names() {
    let variant = Variant::TakesAnyReport;
    breaks(variant, PLAIN, RETURN, Breach::StartedTwice, 13);
}

#[test]
fn o5_a_loss_is_repaired_by_a_sync() {
    sticks(Variant::NoRepair, PLAIN, LOSS, 33);
}

#[test]
fn o6_nothing_is_taken_back_before_a_life_is_over() {
    let variant = Variant::RevokesEarly;
    breaks(variant, PLAIN, NONE, Breach::AboveLimit, 7);
}

#[test]
fn o6_what_a_lost_worker_held_is_taken_back() {
    sticks(Variant::NeverRevokes, PLAIN, DEATH, 12);
}

#[test]
fn o6_only_what_was_in_no_queue_counts_as_returned_by_the_broker() {
    let faults = Faults {
        doublings: 1,
        ..LOSS
    };
    let variant = Variant::BelievesEveryBounce;
    breaks(variant, PLAIN, faults, Breach::BegunGivenBack, 4);
}
