//! Cancelling before and after the start.

use attune_core::Status;
use attune_record::Record;

use crate::rig::{Rig, again, echo, is_gone, named, pid_in, stubborn};

#[tokio::test]
async fn what_was_cancelled_before_it_began_is_reported_and_never_run() {
    let mut rig = Rig::start().await;
    let worker = rig.life().await;
    let grant = echo(1);
    let mut section = rig.owner.grant(worker, std::slice::from_ref(&grant));
    section.cancel = vec![named(&grant)];
    rig.send(&section).await;
    let completion = rig.completion().await;
    assert_eq!(completion.status, Status::Cancelled);
    assert_eq!(completion.error.as_deref(), Some("cancelled before it ran"));
    assert!(completion.started_at.is_none());
    rig.stop().await;
    assert_eq!(rig.records(), []);
    assert_eq!(rig.worker.counters().runs.get(), 0);
}

#[tokio::test]
async fn a_cancel_ends_a_running_program_and_only_that_attempt() {
    let mut rig = Rig::start().await;
    let (sign, other_sign) = (rig.sign("one"), rig.sign("two"));
    let (grant, other) = (stubborn(1, &sign), stubborn(2, &other_sign));
    rig.grant(&[grant.clone(), other.clone()]).await;
    let pid = pid_in(&sign).await;
    pid_in(&other_sign).await;
    // A cancel of another attempt and of something unknown means nothing here.
    rig.cancel(&[&again(&other), &echo(99), &grant]).await;
    let completion = rig.completion().await;
    assert_eq!(completion.execution_id, grant.execution_id);
    assert_eq!(completion.status, Status::Cancelled);
    is_gone(&pid).await;
    assert!(!rig.has_more());
    rig.cancel(&[&other]).await;
    assert_eq!(rig.completion().await.execution_id, other.execution_id);
    rig.stop().await;
    let ends = rig.records().into_iter().filter(|record| {
        matches!(
            record,
            Record::End {
                status: Some(Status::Cancelled),
                ..
            }
        )
    });
    assert_eq!(ends.count(), 2);
}
