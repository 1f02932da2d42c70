//! Every scenario, and the bugs that they are there to find.

#![cfg(test)]

use attune_schedules::{bus, check, commands, histories, queues, sync, worker};

macro_rules! holds {
    ($($piece:ident::$scenario:ident)*) => {
        $(
            #[test]
            fn $scenario() {
                check($piece::$scenario);
            }
        )*
    };
}

holds! {
    queues::callers_take_turns
    queues::a_cancellation_races_a_release
    queues::a_caller_that_goes_away_passes_its_slot_on
    queues::a_timeout_races_a_release
    queues::clearing_tells_everyone
    queues::looking_never_hangs
    bus::a_receiver_that_leaves_gives_back_in_order
    bus::the_next_receiver_continues_in_order
    bus::receivers_that_share_get_each_message_once
    bus::subscribing_to_a_bus_that_closes_ends
    commands::everyone_gets_its_own_answer
    commands::nobody_waits_for_ever
    worker::a_life_ends_before_its_lease
    worker::the_outbox_wakes_its_readers_and_whoever_waits_for_room
    worker::a_closed_outbox_lets_everything_out
    histories::a_flush_and_the_end_lose_nothing
}

fn with_lost_notifications(scenario: fn()) {
    sync::forget_notifications(true);
    check(scenario);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_lost_notification_of_the_queue_is_found() {
    with_lost_notifications(queues::callers_take_turns);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_lost_notification_of_the_outbox_is_found() {
    with_lost_notifications(worker::the_outbox_wakes_its_readers_and_whoever_waits_for_room);
}
