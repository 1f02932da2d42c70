//! What operators hold.

use std::sync::Arc;

use attune_core::{PauseMode, PauseTarget, RequestId};
use attune_store::What;
use attune_store::{Pause, PauseChange, PauseOutcome, PauseSet, Store};

use super::support::{PARTITIONS, ref_in, spec};

fn change(target: &PauseTarget, mode: Option<PauseMode>, who: &str) -> PauseChange {
    PauseChange {
        request_id: RequestId::fresh(),
        target: target.clone(),
        mode,
        who: who.into(),
        reason: mode.map(|_| "the host of its database moves".to_owned()),
    }
}

async fn made(store: &Arc<dyn Store>, change: &PauseChange) -> (Option<Pause>, Option<Pause>) {
    match store.change_pause(change).await.unwrap() {
        PauseOutcome::Stored { before, after } => (before, after),
        other => panic!("{other:?}"),
    }
}

async fn set(store: &Arc<dyn Store>) -> PauseSet {
    store.pauses(None).await.unwrap().unwrap()
}

/// A pause is held until it is resumed; each change has a higher version and an entry of the audit
/// log, and what changes nothing has neither.
pub async fn a_pause_is_held_until_it_is_resumed(store: Arc<dyn Store>) {
    assert_eq!(set(&store).await, PauseSet::default());
    let action_ref = ref_in(3, "a");
    let pack = PauseTarget::Pack(action_ref.pack().to_owned());
    let action = PauseTarget::Action(action_ref.clone());
    store
        .apply_action(&spec(&action_ref), PARTITIONS, "suite")
        .await
        .unwrap();
    for (n, target) in [PauseTarget::All, action.clone(), pack].iter().enumerate() {
        let pausing = change(target, Some(PauseMode::Pause), "ann");
        let (before, after) = made(&store, &pausing).await;
        assert_eq!(before, None);
        let now = set(&store).await;
        assert_eq!(now.version, i64::try_from(n).unwrap() + 1);
        assert_eq!(
            now.held.iter().find(|it| it.target == *target),
            after.as_ref()
        );
        // The same once more is nothing new.
        assert_eq!(made(&store, &pausing).await, (after.clone(), after));
        assert_eq!(set(&store).await.version, now.version);
    }
    let first = set(&store).await.held.into_iter();
    let first = first.clone().find(|it| it.target == action).unwrap();
    // Another mode begins anew, another reason does not.
    let (_, drained) = made(&store, &change(&action, Some(PauseMode::Drain), "bob")).await;
    let drained = drained.unwrap();
    assert!(drained.since >= first.since);
    let (_, again) = made(&store, &change(&action, Some(PauseMode::Drain), "cy")).await;
    let again = again.unwrap();
    assert_eq!((again.since, again.who.as_str()), (drained.since, "cy"));

    let (before, after) = made(&store, &change(&action, None, "dan")).await;
    assert_eq!((before.as_ref(), after), (Some(&again), None));
    let now = set(&store).await;
    assert_eq!((now.version, now.held.len()), (6, 2));
    let [(resumed, at)] = &now.resumed[..] else {
        panic!("{now:?}");
    };
    assert_eq!(resumed, &action);
    assert!(*at >= again.since);
    assert_eq!(
        made(&store, &change(&action, None, "dan")).await,
        (None, None)
    );
    assert_eq!(set(&store).await, now);
    // What is held again was not resumed.
    made(&store, &change(&action, Some(PauseMode::Pause), "eve")).await;
    assert_eq!(set(&store).await.resumed, []);

    let log = store.audit_log(None, 20).await.unwrap();
    assert_eq!(
        log.len(),
        7,
        "three pauses, two drains, a resume and a pause"
    );
    let resume = &log[1];
    assert_eq!(
        (
            resume.what.as_str(),
            resume.who.as_str(),
            resume.target.as_str()
        ),
        (
            What::QueuesResume.name(),
            "dan",
            format!("action {action_ref}").as_str()
        )
    );
    assert_eq!(resume.before.as_ref().unwrap()["mode"], "drain");
    assert_eq!(resume.after, None);
}

/// What is not there can neither be held nor resumed, and leaves no trace.
pub async fn only_what_there_is_is_paused(store: Arc<dyn Store>) {
    let action_ref = ref_in(0, "a");
    let pack = PauseTarget::Pack(action_ref.pack().to_owned());
    for target in [PauseTarget::Action(action_ref), pack] {
        for mode in [Some(PauseMode::Pause), None] {
            let changing = change(&target, mode, "ann");
            let outcome = store.change_pause(&changing).await.unwrap();
            assert_eq!(outcome, PauseOutcome::NoTarget, "{mode:?}");
        }
    }
    assert_eq!(set(&store).await, PauseSet::default());
    assert_eq!(store.audit_log(None, 10).await.unwrap(), []);
}

/// Whoever knows a set is told of newer ones alone.
pub async fn a_set_is_read_when_it_is_newer(store: Arc<dyn Store>) {
    assert_eq!(store.pauses(Some(0)).await.unwrap(), None);
    made(
        &store,
        &change(&PauseTarget::All, Some(PauseMode::Drain), "ann"),
    )
    .await;
    let newer = store.pauses(Some(0)).await.unwrap().unwrap();
    assert_eq!(newer, set(&store).await);
    assert_eq!(store.pauses(Some(newer.version)).await.unwrap(), None);
}

/// Those who change it at once make versions that follow each other, and none is lost.
pub async fn racing_operators_make_one_set(store: Arc<dyn Store>) {
    let refs: Vec<_> = (0..6)
        .map(|n| ref_in(n % PARTITIONS, &format!("a{n}")))
        .collect();
    for action_ref in &refs {
        store
            .apply_action(&spec(action_ref), PARTITIONS, "suite")
            .await
            .unwrap();
    }
    let operators: Vec<_> = refs
        .iter()
        .map(|action_ref| {
            let (store, target) = (Arc::clone(&store), PauseTarget::Action(action_ref.clone()));
            tokio::spawn(async move {
                for mode in [Some(PauseMode::Pause), None, Some(PauseMode::Drain)] {
                    made(&store, &change(&target, mode, "ann")).await;
                }
            })
        })
        .collect();
    for operator in operators {
        operator.await.unwrap();
    }
    let now = set(&store).await;
    assert_eq!((now.version, now.held.len()), (18, 6));
}
