//! What was lost is found by comparing, and nothing is forgotten before it is settled.

use std::sync::atomic::Ordering;
use std::time::Duration;

use attune_core::Status;
use attune_dispatch::Key;

use crate::buses::Troubled;
use crate::rig::{
    Rig, again, completions_in, echo, is_gone, named, pid_in, sleep, stubborn, until,
};

#[tokio::test]
async fn after_a_gap_nothing_begins_before_a_sync() {
    let mut rig = Rig::start().await;
    let worker = rig.life().await;
    let lost = rig.owner.grant(worker, &[echo(1)]);
    let late = rig.owner.grant(worker, &[echo(2)]);
    rig.send(&late).await;
    let report = rig
        .report("a sync is asked for", |report| !report.resync.is_empty())
        .await;
    assert_eq!(report.resync, [lost.partition]);
    // Again and again, until it comes.
    rig.report("a sync is asked for again", |report| {
        !report.resync.is_empty()
    })
    .await;
    rig.sync(&echo(1)).await;
    let report = rig.gives_back(&[&echo(1), &echo(2)]).await;
    assert_eq!(report.returned[0].why, "it was lost on its way");
    // What was lost comes late.
    rig.send(&lost).await;
    rig.send(&late).await;
    rig.all_is_taken().await;
    assert_eq!(rig.worker.counters().runs.get(), 0);
    rig.grant(&[again(&echo(1)), again(&echo(2))]).await;
    for completion in rig.completions(2).await {
        assert_eq!(completion.attempt.0, 2);
    }
    rig.stop().await;
    assert_eq!(rig.worker.counters().runs.get(), 2);
}

#[tokio::test]
async fn a_sync_forgets_kills_and_returns_what_is_lacking() {
    let mut rig = Rig::start().await;
    rig.settles = false;
    let sign = rig.sign("pid");
    let (running, ended, lacking) = (stubborn(1, &sign), echo(2), echo(3));
    let worker = rig.grant(&[running.clone(), ended.clone()]).await;
    let pid = pid_in(&sign).await;
    assert_eq!(rig.completion().await.execution_id, ended.execution_id);

    rig.owner.free(worker, running.key());
    rig.owner.hold(worker, lacking.key());
    rig.sync(&ended).await;
    is_gone(&pid).await;
    rig.gives_back(&[&lacking]).await;
    let told_again = rig.completion().await;
    assert_eq!(
        (told_again.execution_id, told_again.status),
        (ended.execution_id, Status::Succeeded)
    );
    // A sync that names nothing settles everything.
    rig.owner.free(worker, lacking.key());
    rig.owner.free(worker, ended.key());
    rig.sync(&ended).await;
    rig.all_is_taken().await;
    let counters = rig.worker.counters();
    until("nothing is kept", || counters.kept.get() == 0).await;
    rig.stop().await;
    assert!(!rig.has_more(), "nothing is told of what was killed");
    assert_eq!((counters.abandoned.get(), counters.runs.get()), (1, 2));
}

/// Something granted later must not overtake it.
#[tokio::test]
async fn after_a_return_nothing_of_the_action_begins_before_it_is_settled() {
    let mut rig = Rig::start().await;
    rig.settles = false;
    let (lacking, next, after) = (echo(1), echo(2), echo(3));
    let mut other = echo(4);
    other.action_id.0 += 1;
    let worker = rig.life().await;
    // Of something that never arrived here its action is not known.
    let (first, second) = (sleep(8, 300.0), echo(9));
    rig.grant(std::slice::from_ref(&first)).await;
    rig.owner.hold(worker, lacking.key());
    rig.sync(&lacking).await;
    rig.gives_back(&[&lacking]).await;
    rig.grant(&[next.clone(), other.clone()]).await;
    rig.gives_back(&[&lacking, &next, &other]).await;
    rig.grant(std::slice::from_ref(&second)).await;
    let report = rig.gives_back(&[&lacking, &next, &other, &second]).await;
    let last = report.returned.last().unwrap();
    assert_eq!(last.why, "something before it was given back");
    assert_eq!(rig.worker.counters().runs.get(), 1);

    // As a whole, in the section that grants the next.
    let keys = [&lacking, &next, &other, &second].map(|grant| grant.key());
    for key in keys {
        rig.owner.free(worker, key);
    }
    let mut section = rig.owner.grant(worker, std::slice::from_ref(&after));
    section.settled = keys.map(Into::into).to_vec();
    rig.send(&section).await;
    let completion = rig.completion().await;
    assert_eq!(completion.execution_id, after.execution_id);
    rig.settles = true;
    rig.owner.settle(worker, &[after.key()]).await;
    rig.cancel(&[&first]).await;
    assert_eq!(rig.completion().await.status, Status::Cancelled);
    rig.stop().await;
}

/// A broker's confirm settles nothing.
#[tokio::test]
async fn ends_are_told_again_until_they_are_settled() {
    let mut rig = Rig::start_with(|options| {
        options.retell_after = Duration::from_millis(50);
    })
    .await;
    rig.settles = false;
    let grant = echo(1);
    let worker = rig.grant(std::slice::from_ref(&grant)).await;
    let counters = rig.worker.counters();
    for told in 0..3 {
        // Once to where messages outlive the broker.
        let delivery = match told {
            1 => rig.lasting.next().await,
            _ => rig.completed.next().await,
        };
        let completions = completions_in(&delivery.unwrap());
        let keys = completions
            .iter()
            .map(|item| (item.execution_id, item.attempt));
        assert!(keys.eq([grant.key()]), "{completions:?}");
        assert!(counters.reported.get() >= told);
    }
    assert_eq!((counters.runs.get(), counters.kept.get()), (1, 1));
    rig.owner.settle(worker, &[grant.key()]).await;
    rig.all_is_taken().await;
    until("nothing is kept", || counters.kept.get() == 0).await;
    assert!(counters.retold.get() >= 2);
    rig.settles = true;
    rig.stop().await;
}

#[tokio::test]
async fn a_completion_that_the_broker_has_lost_is_told_again() {
    let bus = Troubled::losing(1);
    let mut rig = Rig::start_on(bus.clone(), bus.bus.clone(), |options| {
        options.retell_after = Duration::from_millis(50);
    })
    .await;
    let grant = echo(1);
    rig.grant(std::slice::from_ref(&grant)).await;
    let completion = rig.completion().await;
    assert_eq!(
        (completion.execution_id, completion.status),
        (grant.execution_id, Status::Succeeded)
    );
    let counters = rig.worker.counters();
    assert!(counters.retold.get() > 0);
    until("it is settled", || counters.kept.get() == 0).await;
    assert!(bus.publishes.load(Ordering::SeqCst) >= 2);
    rig.stop().await;
}

/// A broker that restarts has lost what was not to outlive it: nothing else is waited for.
#[tokio::test]
async fn what_was_told_is_told_again_on_a_new_connection() {
    let bus = Troubled::losing(1);
    let mut rig = Rig::start_on(bus.clone(), bus.bus.clone(), |_| {}).await;
    rig.grant(&[echo(1)]).await;
    let counters = rig.worker.counters();
    until("it is told", || counters.reported.get() == 1).await;
    bus.renewals.send_modify(|renewals| *renewals += 1);
    assert_eq!(rig.completion().await.execution_id, echo(1).execution_id);
    assert_eq!(counters.retold.get(), 1);
    rig.stop().await;
    assert_eq!(counters.runs.get(), 1);
}

/// Sections may be lost with the connection; so it asks for them, and executors hear that it can be
/// reached.
#[tokio::test]
async fn a_link_that_is_made_anew_asks_for_what_it_may_have_missed() {
    let bus = Troubled::well();
    let mut rig = Rig::start_on(bus.clone(), bus.bus.clone(), |_| {}).await;
    let long = sleep(1, 300.0);
    let worker = rig.grant(std::slice::from_ref(&long)).await;
    rig.all_is_taken().await;
    bus.renewals.send_modify(|renewals| *renewals += 1);
    assert_eq!(rig.owner.hello().await, worker);
    let report = rig
        .report("a sync is asked for", |report| !report.resync.is_empty())
        .await;
    assert_eq!(report.resync, [long.execution_id.partition()]);
    rig.sync(&long).await;
    rig.cancel(&[&long]).await;
    let completion = rig.completion().await;
    assert_eq!(
        (completion.execution_id, completion.status),
        (long.execution_id, Status::Cancelled)
    );
    rig.stop().await;
    assert_eq!(rig.worker.counters().runs.get(), 1);
}

/// An owner that hears of it twice settles it twice.
#[tokio::test]
async fn what_is_settled_twice_or_was_never_here_is_nobodys_business() {
    let mut rig = Rig::start().await;
    let worker = rig.grant(&[echo(1)]).await;
    rig.completion().await;
    let unknown: Key = echo(99).key();
    rig.owner.settle(worker, &[echo(1).key(), unknown]).await;
    let mut section = rig.owner.next(worker, echo(1).execution_id.partition());
    section.cancel = vec![named(&echo(1)), named(&echo(98))];
    rig.send(&section).await;
    rig.grant(&[echo(2)]).await;
    assert_eq!(rig.completion().await.execution_id, echo(2).execution_id);
    rig.stop().await;
    assert!(!rig.has_more());
}
