#![expect(
    clippy::unwrap_used,
    reason = "a case panics when the store does not behave"
)]
//! The suite that every adapter passes: what the ports promise, as tests over a [`Store`].
//!
//! A case is a plain async function. It gets a store whose schema is migrated and which holds
//! nothing, and panics when the store does not behave. An adapter calls
//! [`conformance_tests!`] in its integration tests, which makes one
//! test of each case:
//!
//! ```ignore
//! /// Makes a fresh store, runs the case on it, removes the store.
//! async fn on_fresh_store(case: attune_store_conformance::Case) { … }
//!
//! attune_store_conformance::conformance_tests!(on_fresh_store);
//! ```

mod actions;
mod audit;
mod commits;
mod dead_letters;
mod demands;
mod ends;
mod executions;
mod fence;
mod grants;
mod holders;
mod keys;
mod leases;
mod listing;
mod meters;
mod operations;
mod pauses;
mod policies;
mod requests;
mod retries;
mod slots;
mod stats;
mod support;
mod traces;
mod workers;

use std::pin::Pin;
use std::sync::Arc;

use attune_store::Store;

/// A case that has been started.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One case: takes a fresh, migrated store and panics when the store breaks a promise.
pub type Case = fn(Arc<dyn Store>) -> Running;

/// Runs every case one after another, each on a store that `make` has just made.
///
/// # Panics
/// When the store breaks a promise.
pub async fn run_all(make: impl AsyncFn() -> Arc<dyn Store>) {
    for (_, case) in CASES {
        case(make().await).await;
    }
}

/// Names every case once and makes of that list [`CASES`] and `conformance_tests!`. The first
/// argument is a dollar sign, which the inner macro cannot write itself.
macro_rules! cases {
    (($d:tt) $($module:ident :: $case:ident,)*) => {
        $(pub use $module::$case;)*

        /// Every case with its name.
        pub const CASES: &[(&str, Case)] =
            &[$((stringify!($case), |store| Box::pin($module::$case(store)))),*];

        /// Makes one `#[tokio::test]` of each case of the suite. The argument names an async
        /// function that takes a [`Case`](crate::Case), runs it on a fresh store
        /// and lets its panic through.
        #[macro_export]
        macro_rules! conformance_tests {
            ($d run:path) => {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        $d run(|store| ::std::boxed::Box::pin($d crate::$case(store)))
                            .await;
                    }
                )*
            };
        }
    };
}

cases! { ($)
    leases::partitions_are_made_once,
    leases::a_cluster_has_from_1_to_256_partitions,
    leases::a_free_partition_is_taken_once,
    leases::an_expired_lease_changes_hands,
    leases::a_renewal_needs_owner_and_epoch,
    leases::an_expired_lease_that_nobody_took_can_be_renewed,
    leases::a_lease_given_up_is_free_at_once,
    leases::a_handed_over_lease_waits_for_its_new_owner,
    leases::a_free_partition_tells_since_when,
    leases::what_an_owner_says_ends_with_its_epoch,
    leases::executors_know_who_is_there,
    leases::an_executor_says_that_it_is_cut_off,
    leases::racing_owners_share_the_partitions,
    leases::a_lease_is_taken_as_it_was_observed,
    leases::racing_watchers_share_the_partitions,
    leases::an_expired_lease_names_its_holder,
    leases::the_clock_of_the_store_is_told,
    fence::a_stale_epoch_writes_nothing,
    fence::every_missing_fence_is_named,
    fence::an_expired_lease_that_nobody_took_still_writes,
    fence::a_restore_fences_everybody_off,
    fence::fences_are_checked_without_anything_to_write,
    fence::the_first_says_which_bus_it_is,
    commits::inserts_load_in_order_and_in_pages,
    commits::a_grant_returns_the_body,
    commits::a_repeated_batch_changes_nothing,
    commits::a_repeated_grant_leaves_a_start_alone,
    commits::a_slot_taken_back_can_be_granted_again,
    commits::an_update_never_lowers_the_attempt,
    commits::a_cancellation_keeps_the_status,
    commits::totals_are_absolute,
    commits::a_large_batch_is_written_whole,
    commits::many_large_bodies_come_in_several_answers,
    meters::meters_are_written_and_loaded_in_pages,
    meters::a_stale_owner_counts_nothing,
    meters::the_upkeep_removes_what_counts_no_more_and_nothing_else,
    meters::the_upkeep_keeps_what_counts_for_a_limit_that_was_lengthened,
    commits::nothing_asked_is_nothing_done,
    ends::an_end_moves_into_the_history,
    ends::an_instant_end_goes_straight_to_the_history,
    ends::ends_are_counted_once,
    ends::a_hostile_outcome_is_stored,
    grants::a_grant_names_its_worker,
    grants::a_grant_ahead_of_a_slot_waits_with_its_worker,
    grants::what_is_said_to_have_started_runs,
    grants::only_the_attempt_that_holds_the_slot_starts,
    grants::a_start_does_not_go_with_another_change_of_its_slot,
    grants::the_history_tells_when_it_began,
    grants::no_run_is_too_long_to_be_stored,
    grants::who_holds_no_slot_for_an_attempt_has_no_worker,
    grants::a_repeated_round_of_grants_and_starts_changes_nothing,
    grants::a_stale_owner_starts_nothing,
    traces::a_trace_comes_with_the_body,
    traces::an_instant_end_keeps_its_trace,
    workers::an_expired_worker_comes_back_until_it_is_ended,
    workers::a_worker_that_did_not_move_is_ended,
    workers::a_worker_says_that_it_drains,
    workers::a_worker_may_drain_from_its_first_renewal_on,
    workers::workers_are_listed_by_name,
    workers::the_ends_of_workers_are_known,
    workers::a_life_is_of_who_registered_it,
    slots::what_a_worker_had_begun_is_known,
    slots::slots_are_loaded_with_their_holders,
    slots::slots_follow_every_change,
    slots::a_lost_worker_is_seen,
    slots::bodies_are_loaded_while_active,
    slots::pages_of_a_partition_follow_one_another,
    slots::a_slice_is_as_long_as_asked,
    slots::what_is_decided_has_the_time_of_its_owner,
    holders::holders_are_shown_with_their_workers,
    holders::holders_come_in_pages,
    audit::an_entry_is_written_with_its_batch_and_once,
    audit::a_fenced_batch_leaves_no_entry,
    audit::violations_are_summed_up,
    audit::entries_are_a_chain,
    audit::what_somebody_applies_is_written_down,
    audit::what_begins_and_takes_over_is_written_down,
    keys::a_key_is_kept_and_revoked,
    keys::a_name_is_of_one_key,
    keys::what_waits_of_an_asker_is_counted,
    keys::a_key_is_rotated,
    demands::demands_are_kept,
    demands::words_are_told_while_active,
    dead_letters::letters_are_kept_and_listed,
    dead_letters::a_message_has_one_letter,
    dead_letters::a_letter_is_put_back_once_and_audited,
    dead_letters::a_letter_is_written_with_its_batch,
    dead_letters::a_fenced_batch_leaves_no_letter,
    dead_letters::old_letters_go_first,
    retries::what_is_tried_again_waits_with_its_reason,
    retries::who_is_put_back_and_granted_at_once_keeps_its_reason,
    retries::who_keeps_its_slot_holds_it_for_its_next_try,
    retries::a_repeated_or_fenced_retry_changes_nothing,
    operations::an_operation_is_stored_once_and_comes_back,
    operations::no_more_operations_are_open_than_may_be,
    operations::progress_is_written_under_the_fence_as_it_is,
    operations::who_is_moved_stands_there_for_whoever_loads_it,
    operations::what_would_be_meant_is_counted,
    operations::what_operations_go_by_is_read_without_what_is_large,
    pauses::a_pause_is_held_until_it_is_resumed,
    pauses::only_what_there_is_is_paused,
    pauses::a_set_is_read_when_it_is_newer,
    pauses::racing_operators_make_one_set,
    policies::documents_have_versions_in_the_order_of_the_commits,
    policies::what_was_checked_against_something_else_is_not_stored,
    policies::many_changes_are_stored_together_or_not_at_all,
    policies::the_policy_of_an_action_is_changed_in_the_action,
    policies::an_action_is_applied_under_the_set_it_was_checked_under,
    policies::a_policy_set_is_read_when_it_is_newer,
    policies::racing_changes_make_one_set,
    policies::progress_rises_under_the_fence,
    requests::a_request_is_known_through_its_life,
    requests::a_request_keeps_its_first_execution,
    requests::requests_are_kept_as_long_as_asked,
    requests::a_gap_lies_between_stored_requests,
    actions::an_action_is_created_changed_and_kept,
    actions::a_policy_has_a_history,
    actions::racing_authors_create_an_action_once,
    actions::actions_are_listed_by_ref,
    actions::actions_are_looked_up_by_ref_and_partition,
    executions::everything_about_an_execution_is_kept,
    executions::it_is_told_where_an_execution_stands,
    executions::what_was_given_is_told_as_it_was_written,
    executions::unicode_and_large_parameters_come_back,
    executions::upkeep_leaves_what_is_active_alone,
    listing::every_filter_selects,
    listing::pages_have_no_gaps_while_executions_end,
    listing::the_newest_come_first,
    listing::long_parts_are_left_out_of_a_list,
    stats::the_newest_snapshot_wins,
    stats::snapshots_are_listed_by_length,
    stats::snapshots_have_the_bounds_of_their_queue,
}
