//! The protocol holds; each variant that leaves something out does not.

use attune_model::ownership::{Bounds, MUST_HOLD, Protocol, Variant, check_all, find_breach};

/// Large enough for a second attempt under a third owner.
const LIMIT_1: Bounds = Bounds {
    executions: 3,
    limit: 1,
    epochs: 3,
    unknowns: 1,
    late_commits: false,
    lost_workers: 1,
    max_attempts: 2,
};

const LIMIT_2: Bounds = Bounds {
    limit: 2,
    epochs: 2,
    unknowns: 0,
    ..LIMIT_1
};

#[track_caller]
fn holds(variant: Variant, bounds: Bounds, may_be_missing: &[&str]) {
    let mut report = check_all(Protocol { variant, bounds });
    println!(
        "{variant:?}, {bounds:?}: {} states, {:?}",
        report.states, report.elapsed
    );
    assert!(report.broken.is_empty(), "{:#?}", report.broken);
    report
        .never_seen
        .retain(|name| !may_be_missing.contains(name));
    assert!(
        report.never_seen.is_empty(),
        "never happened: {:?}",
        report.never_seen
    );
    assert!(report.states > 10_000, "{}", report.states);
}

/// Breaks the promise whose name begins with these words.
#[track_caller]
fn breaks(variant: Variant, bounds: Bounds, words: &str) {
    let promise = MUST_HOLD
        .into_iter()
        .find(|name| name.starts_with(words))
        .unwrap();
    let report = find_breach(Protocol { variant, bounds }, promise);
    let steps = report
        .broken
        .into_iter()
        .find(|(name, _)| *name == promise)
        .map(|(_, steps)| steps);
    let Some(steps) = steps else {
        panic!("{variant:?} does not break {promise:?}");
    };
    println!(
        "{variant:?} breaks {promise:?} after {} states, {:?}, in {} steps: {steps:?}",
        report.states,
        report.elapsed,
        steps.len()
    );
}

#[test]
fn the_protocol_holds_with_a_limit_of_one() {
    holds(Variant::Full, LIMIT_1, &[]);
}

#[test]
fn the_protocol_holds_with_a_limit_of_two() {
    let needs_an_unknown_commit = [
        "a commit is sent again",
        "a request comes again after it was stored",
    ];
    holds(Variant::Full, LIMIT_2, &needs_an_unknown_commit);
}

#[test]
fn unknown_commits_are_harmless_with_a_limit_of_two() {
    let bounds = Bounds {
        unknowns: 1,
        lost_workers: 0,
        ..LIMIT_2
    };
    let needs_a_lost_worker = [
        "a completion comes after its slot was taken back",
        "a program runs on after its worker's lease has ended",
        "everything ends, one in its second attempt",
    ];
    holds(Variant::Full, bounds, &needs_a_lost_worker);
}

#[test]
#[ignore = "takes minutes; the figures are printed by the example `explore`"]
fn the_protocol_holds_within_larger_bounds() {
    holds(
        Variant::Full,
        Bounds {
            unknowns: 1,
            ..LIMIT_2
        },
        &[],
    );
    holds(
        Variant::Full,
        Bounds {
            unknowns: 2,
            epochs: 2,
            ..LIMIT_1
        },
        &[],
    );
}

#[test]
fn without_the_fence_a_stale_owner_exceeds_the_limit() {
    breaks(Variant::NoFence, LIMIT_1, "I2 slots");
}

#[test]
fn a_commit_that_is_sent_again_needs_the_fence_again() {
    breaks(Variant::RetryUnfenced, LIMIT_1, "I2 slots");
}

#[test]
fn without_the_claim_an_attempt_starts_twice() {
    breaks(Variant::NoClaim, LIMIT_1, "one start");
}

#[test]
fn a_counter_instead_of_a_set_exceeds_the_limit() {
    breaks(Variant::Counter, LIMIT_1, "I2 slots");
}

/// The residual assumption: a worker kills what it runs before its lease and the grace are over.
#[test]
fn a_worker_that_kills_too_late_exceeds_the_limit() {
    breaks(Variant::KillLate, LIMIT_1, "I2 programs");
}

#[test]
fn a_slot_that_is_taken_back_needs_a_new_attempt() {
    breaks(Variant::SameAttempt, LIMIT_1, "one start");
}

#[test]
fn a_retry_keeps_its_place() {
    breaks(Variant::RetryAtBack, LIMIT_1, "I3 nobody");
}

#[test]
fn acknowledging_before_the_commit_loses_requests() {
    breaks(Variant::AckFirst, LIMIT_1, "I1");
}

/// A stale owner knows nothing of the slots of the next one: what it takes for a stale completion
/// may be the only word of one of these.
#[test]
fn acknowledging_alone_needs_the_fence() {
    breaks(Variant::AckUnfenced, LIMIT_1, "I4");
}

#[test]
fn what_a_lost_receiver_had_comes_first_again() {
    breaks(Variant::RequeueAtBack, LIMIT_1, "I3 the sequence");
}

/// A commit that the store carries out after its owner has sent it again and gone on: the row of
/// an execution that has ended meanwhile would come back. Only a new epoch keeps it out.
#[test]
fn a_first_try_that_is_carried_out_late_needs_a_fresh_epoch() {
    let bounds = Bounds {
        executions: 2,
        late_commits: true,
        ..LIMIT_1
    };
    breaks(Variant::Full, bounds, "one start");
    breaks(Variant::Full, bounds, "I5");
    holds(Variant::FreshEpoch, bounds, &[]);
}
