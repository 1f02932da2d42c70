//! Executors that come, go, crash and stand still share the partitions, and no execution is
//! lost, doubled or out of order.

use std::time::{Duration, Instant};

use attune_core::{OnWorkerLost, Status};
use attune_executor::Counter;
use attune_executor_service::ExecutorOptions;
use attune_store::{CommitError, ExecutionStore as _};

use crate::member::Member;
use crate::system::{PARTITIONS, System, TTL, until};

/// Waits until these executors own and serve shares that differ by one at most.
async fn shared(system: &System, members: &[&Member]) {
    let all = usize::from(PARTITIONS);
    let (base, larger) = (all / members.len(), all % members.len());
    until("the partitions are shared evenly", async || {
        let owners = system.owners().await;
        let sizes: Vec<usize> = members
            .iter()
            .map(|member| owners.get(&member.id).copied().unwrap_or(0))
            .collect();
        let served: Vec<usize> = members
            .iter()
            .map(|member| *member.owned.borrow())
            .collect();
        let large = sizes.iter().filter(|size| **size == base + 1).count();
        let even = sizes.iter().all(|size| *size == base || *size == base + 1);
        (even && large == larger && served == sizes && sizes.iter().sum::<usize>() == all)
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_comes_gets_a_share_and_whoever_goes_leaves_it() {
    let system = System::new().await;
    let one = system.member("one").await;
    shared(&system, &[&one]).await;
    let two = system.member("two").await;
    shared(&system, &[&one, &two]).await;
    let three = system.member("three").await;
    shared(&system, &[&one, &two, &three]).await;
    let epochs = |leases: Vec<attune_store::Lease>| -> i64 {
        leases.iter().map(|lease| lease.epoch.0).sum()
    };
    use attune_store::PartitionStore as _;
    let before = epochs(system.store.leases().await.unwrap());
    let share = system.owners().await[&two.id];
    two.stop().await;
    // It has handed everything over before it ended: nobody had to wait for a lease to run out.
    shared(&system, &[&one, &three]).await;
    let moves = epochs(system.store.leases().await.unwrap()) - before;
    let bound = share + 2 * usize::from(PARTITIONS).isqrt();
    assert!(moves <= i64::try_from(bound).unwrap(), "{moves} moves");
    one.stop().await;
    three.stop().await;
    assert!(system.owners().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_executor_is_replaced_when_its_leases_have_ended() {
    let system = System::new().await;
    let refs = system.actions().await;
    let (one, two) = (system.member("one").await, system.member("two").await);
    shared(&system, &[&one, &two]).await;
    for number in 0..20 {
        for action_ref in &refs {
            system.submit(action_ref, number).await;
        }
    }
    until("work has begun everywhere", async || {
        refs.iter()
            .all(|text| system.started(text) > 0)
            .then_some(())
    })
    .await;
    let crash = Instant::now();
    two.kill().await;
    one.serves(usize::from(PARTITIONS)).await;
    let took = crash.elapsed();
    println!("served {took:?} after the crash, leases of {TTL:?}");
    for number in 20..40 {
        for action_ref in &refs {
            system.submit(action_ref, number).await;
        }
    }
    system.all_ran(&refs, 40).await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_and_limits_hold_while_partitions_are_handed_over() {
    let system = System::new().await;
    let refs = system.actions().await;
    let one = system.member("one").await;
    shared(&system, &[&one]).await;
    let (mut number, start) = (0, Instant::now());
    let mut feed = async |done: &dyn Fn() -> bool| {
        while !done() {
            for action_ref in &refs {
                system.submit(action_ref, number).await;
            }
            number += 1;
            until("little waits", async || {
                refs.iter()
                    .all(|text| system.started(text) as u64 + 20 > number)
                    .then_some(())
            })
            .await;
        }
        number
    };
    let two = system.member("two").await;
    let three = system.member("three").await;
    let (a, b, c) = (one.owned.clone(), two.owned.clone(), three.owned.clone());
    feed(&|| *a.borrow() <= 3 && *b.borrow() >= 2 && *c.borrow() >= 2).await;
    let (two_have_all, one_has_all) =
        (|| *b.borrow() == 4 && *c.borrow() == 4, || *b.borrow() == 8);
    tokio::join!(one.stop(), feed(&two_have_all));
    let ((), submitted) = tokio::join!(three.stop(), feed(&one_has_all));
    system.all_ran(&refs, submitted).await;
    let pauses = system.pauses(start);
    println!(
        "{submitted} executions of each action; the longest pauses: {:?}",
        &pauses[..20.min(pauses.len())]
    );
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stood_still_for_too_long_writes_nothing() {
    let system = System::new().await;
    let refs = system.actions().await;
    let stale = system.member("stale").await;
    shared(&system, &[&stale]).await;
    for action_ref in &refs {
        system.submit(action_ref, 0).await;
    }
    system.all_ran(&refs, 1).await;

    // It has decided on the next ones and is about to write.
    stale.door.shut();
    for action_ref in &refs {
        system.submit(action_ref, 1).await;
        system.submit(action_ref, 2).await;
    }
    stale.door.commit_waits().await;
    let fresh = system.member("fresh").await;
    until("the other one has taken over", async || {
        let owners = system.owners().await;
        (owners.get(&fresh.id) == Some(&usize::from(PARTITIONS))).then_some(())
    })
    .await;
    fresh.serves(usize::from(PARTITIONS)).await;
    for action_ref in &refs {
        system.submit(action_ref, 3).await;
    }
    stale.door.open();
    // It is refused, steps down and gives its messages back: the other one goes on with them.
    system.all_ran(&refs, 4).await;
    assert!(stale.fenced().await >= 1);

    // It is as good as a new one, and gets its share.
    shared(&system, &[&stale, &fresh]).await;
    for action_ref in &refs {
        system.submit(action_ref, 4).await;
    }
    system.all_ran(&refs, 5).await;
    stale.stop().await;
    fresh.stop().await;
}

/// What the next owner has done is no leak to be mended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stood_still_while_it_compared_mends_nothing() {
    let system = System::new().await;
    let member = async |name| {
        let options = ExecutorOptions {
            worker_grace: Duration::ZERO,
            ..System::options(name)
        };
        Member::start(&system, options).await
    };
    let stale = member("stale").await;
    shared(&system, &[&stale]).await;
    system.elsewhere("test.held", OnWorkerLost::Fail).await;
    let mut life = system.life_elsewhere(1, Duration::from_secs(1)).await;
    system.submit("test.held", 0).await;
    let held = life.next().await;

    stale.door.shut();
    tokio::select! {
        again = life.next() => panic!("{again:?}"),
        () = stale.door.look_waits() => {}
    }
    drop(life);
    let fresh = member("fresh").await;
    until("the other one has ended the run", async || {
        let record = system.store.find_execution(held.execution_id).await;
        (record.unwrap()?.status == Status::Abandoned).then_some(())
    })
    .await;
    stale.door.open();
    shared(&system, &[&stale, &fresh]).await;
    let mended = [
        Counter::SlotLeakMended,
        Counter::SlotMissingMended,
        Counter::WaitingLeakMended,
        Counter::WaitingMissingMended,
    ];
    for counter in mended {
        assert_eq!(stale.counters.get(counter), 0, "{counter:?}");
    }
    stale.stop().await;
    fresh.stop().await;
}

/// Otherwise it would bring back what has ended meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_comes_late_writes_nothing() {
    let system = System::new().await;
    let refs = system.actions().await;
    let member = system.member("one").await;
    shared(&system, &[&member]).await;
    let late = member.door.delay_next_commit();
    for action_ref in &refs {
        system.submit(action_ref, 0).await;
    }
    system.all_ran(&refs, 1).await;
    let outcome = late.arrive().await;
    assert!(
        matches!(outcome, Err(CommitError::Fenced(_))),
        "{outcome:?}"
    );
    for action_ref in &refs {
        system.submit(action_ref, 1).await;
    }
    system.all_ran(&refs, 2).await;
    member.stop().await;
}

/// It counts as one whose outcome is unknown: nobody waits for its answer for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_panics_stops_nothing() {
    let system = System::new().await;
    let refs = system.actions().await;
    let member = system.member("one").await;
    shared(&system, &[&member]).await;
    member.door.break_next_commit();
    for action_ref in &refs {
        system.submit(action_ref, 0).await;
    }
    system.all_ran(&refs, 1).await;
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_owned_again_soon_after_all_were_killed() {
    let system = System::new().await;
    let (one, two) = (system.member("one").await, system.member("two").await);
    shared(&system, &[&one, &two]).await;
    one.kill().await;
    two.kill().await;
    let three = system.member("three").await;
    let start = Instant::now();
    shared(&system, &[&three]).await;
    assert!(start.elapsed() < TTL * 2 + Duration::from_secs(5));
    three.stop().await;
}
