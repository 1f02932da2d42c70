//! The audit log.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{Epoch, PartitionId, RequestId};
use serde_json::json;

use super::support::{World, fenced};
use attune_store::{
    Actor, ActorKind, Batch, NewAudit, Origin, ProcessStart, Store, StoredOrigin, Via, What,
    check_chain,
};

fn entry(what: What, target: &str) -> NewAudit {
    NewAudit {
        request_id: RequestId::fresh(),
        who: Actor {
            name: "ann \u{1F980}".to_owned(),
            origin: Origin {
                kind: Some(ActorKind::Key),
                key: Some("0123456789ab".to_owned()),
                address: Some("::ffff:192.0.2.7".parse().unwrap()),
                via: Some(Via::Http),
            },
        },
        what,
        target: target.to_owned(),
        reason: Some("the worker's host is gone".to_owned()),
        before: Some(json!({"attempt": 1})),
        after: None,
    }
}

/// An entry comes with the batch it belongs to; a batch that is repeated writes it once.
pub async fn an_entry_is_written_with_its_batch_and_once(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let batch = Batch {
        inserts: vec![world.queued(&action)],
        audit: vec![
            entry(What::ForceRelease, "1"),
            entry(What::ForceRelease, "2"),
        ],
        ..world.batch()
    };
    world.commit(&batch).await;
    world.commit(&batch).await;
    assert_eq!(world.active_ids().await, [batch.inserts[0].id]);
    let log = store.audit_log(None, 10).await.unwrap();
    assert_eq!(log.len(), 2);
    assert!(log[0].id > log[1].id, "the newest first");
    for (kept, new) in log.iter().rev().zip(&batch.audit) {
        assert_eq!((&kept.who, &kept.target), (&new.who.name, &new.target));
        assert_eq!(
            (kept.what.as_str(), kept.request_id),
            (new.what.name(), new.request_id)
        );
        let words = |text: &str| Some(text.to_owned());
        let known = StoredOrigin {
            actor_kind: words("key"),
            key_id: words("0123456789ab"),
            source_ip: words("192.0.2.7"),
            via: words("http"),
        };
        assert_eq!(kept.origin, known);
        assert_eq!((&kept.reason, &kept.before), (&new.reason, &new.before));
        assert_eq!(kept.after, None);
    }
    let page = store.audit_log(Some(log[0].id), 10).await.unwrap();
    assert_eq!(page, log[1..]);
    assert_eq!(store.audit_log(None, 1).await.unwrap(), log[..1]);
}

/// A stale owner writes nothing, and nothing about it.
pub async fn a_fenced_batch_leaves_no_entry(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    world.lose(1).await;
    let batch = Batch {
        audit: vec![entry(What::ForceRelease, "1")],
        ..world.batch()
    };
    assert_eq!(fenced(store.commit(&batch).await), [1]);
    assert_eq!(store.audit_log(None, 10).await.unwrap(), []);
}

/// Violations are counted by action and kind; other entries are none.
pub async fn violations_are_summed_up(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let day = Duration::from_secs(24 * 3600);
    let both = ["p.a".to_owned(), "p.b".to_owned()];
    assert_eq!(store.violations(day, &both).await.unwrap(), []);
    let audit = vec![
        entry(What::OrderViolation, "p.b"),
        entry(What::OrderViolation, "p.b"),
        entry(What::LimitViolation, "p.b"),
        entry(What::LimitViolation, "p.a"),
        entry(What::ForceRelease, "p.a"),
    ];
    world
        .commit(&Batch {
            audit,
            ..world.batch()
        })
        .await;
    let of_a = store.violations(day, &both[..1]).await.unwrap();
    assert_eq!(of_a.len(), 1);
    assert_eq!(store.violations(day, &[]).await.unwrap(), []);
    let found = store.violations(day, &both).await.unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|it| (it.action_ref.as_str(), it.what.as_str(), it.entries))
        .collect();
    let expected = [
        ("p.a", What::LimitViolation.name(), 1),
        ("p.b", What::LimitViolation.name(), 1),
        ("p.b", What::OrderViolation.name(), 2),
    ];
    assert_eq!(found, expected);
}

/// Each entry is a link, in the order of the commits, whoever writes it; and the chain is the one that the same
/// entries give anywhere.
pub async fn entries_are_a_chain(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let empty = check_chain(&*store, None).await.unwrap();
    assert_eq!((empty.entries, empty.head, empty.broken), (0, None, None));
    let batch = Batch {
        audit: vec![
            entry(What::ForceRelease, "1"),
            entry(What::ForceRelease, "2"),
        ],
        ..world.batch()
    };
    world.commit(&batch).await;
    world.commit(&batch).await;
    let plain = NewAudit {
        reason: None,
        before: None,
        after: Some(json!({"name": "a \u{1F980}", "list": [1, 2.5, null]})),
        ..entry(What::KeyCreate, "")
    };
    store.note_audit(&plain).await.unwrap();
    store
        .restore_fence(&Actor::at_console("ann"), 0)
        .await
        .unwrap();
    let whole = check_chain(&*store, None).await.unwrap();
    assert_eq!(
        (whole.entries, whole.first, whole.broken),
        (4, Some(1), None)
    );
    assert_eq!(whole.unchained, 0);
    let (no, noted) = whole.head.unwrap();
    assert_eq!(no, 4);
    store
        .note_audit(&entry(What::KeyRevoke, "3"))
        .await
        .unwrap();
    let later = check_chain(&*store, Some(&noted)).await.unwrap();
    assert!(later.found && later.entries == 5, "{later:?}");
    let other = check_chain(&*store, Some(&[7; 32])).await.unwrap();
    assert!(!other.found);

    let links = store.audit_chain(0, 2).await.unwrap();
    assert_eq!(links.iter().map(|it| it.no).collect::<Vec<_>>(), [1, 2]);
    let first = links[0].entry.clone().unwrap();
    assert_eq!(first.link(&[0; 32]), links[0].hash);
    assert_eq!(first.link(&links[0].hash), {
        let again = first.clone();
        again.link(&links[0].hash)
    });
    let mut changed = first.clone();
    changed.who.push('x');
    assert_ne!(changed.link(&[0; 32]), links[0].hash);
    let mut changed = first.clone();
    changed.origin.source_ip = Some("192.0.2.8".to_owned());
    assert_ne!(changed.link(&[0; 32]), links[0].hash);
    // One without an origin is hashed as before there were any.
    let mut plain = first;
    plain.origin = StoredOrigin::default();
    assert_ne!(plain.link(&[0; 32]), links[0].hash);
    let at = chrono::DateTime::from_timestamp_micros(changed.at_micros).unwrap();
    let log = store.audit_log(None, 10).await.unwrap();
    assert_eq!(log.last().unwrap().at, at);
}

/// An action that somebody applies is written down with who, and without the values of its variables; what
/// changes nothing, and what the system applies by itself, is not.
pub async fn what_somebody_applies_is_written_down(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let own = world.action(0, "a").await;
    assert_eq!(store.audit_log(None, 10).await.unwrap(), []);
    let mut spec = own.spec.clone();
    spec.env.insert("TOKEN".to_owned(), "canary-7".into());
    for _ in 0..2 {
        let under = store.policy_mark().await.unwrap().set_version;
        let applied = store
            .apply_action_under(&spec, 4, &"ann".into(), under)
            .await
            .unwrap();
        assert!(applied.is_some());
    }
    let log = store.audit_log(None, 10).await.unwrap();
    assert_eq!(log.len(), 1, "{log:?}");
    assert_eq!(
        (&*log[0].what, &*log[0].who),
        (What::ActionApply.name(), "ann")
    );
    assert_eq!(log[0].target, spec.action_ref.to_string());
    assert_eq!(log[0].after.as_ref().unwrap()["env"], json!(["TOKEN"]));
    assert!(!format!("{log:?}").contains("canary-7"));
}

/// That a process has begun, and which partitions an executor has taken, are entries of the system.
pub async fn what_begins_and_takes_over_is_written_down(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let start = ProcessStart {
        account: "attune".to_owned(),
        target: "executor executor-1".to_owned(),
        version: "1.2.3".to_owned(),
        settings_sha256: "ab".repeat(32),
    };
    store.note_start(&start).await.unwrap();
    let taken = [(PartitionId(0), Epoch(7)), (PartitionId(3), Epoch(9))];
    store
        .note_takeover(world.owner, "executor-1", &taken)
        .await
        .unwrap();
    let log = store.audit_log(None, 10).await.unwrap();
    let [takeover, begun] = &log[..] else {
        panic!("{log:?}");
    };
    assert_eq!((&*begun.what, &*begun.who), ("config.start", "attune"));
    assert_eq!(begun.target, "executor executor-1");
    let after = begun.after.as_ref().unwrap();
    assert_eq!(after["version"], "1.2.3");
    assert_eq!(after["settings_sha256"], "ab".repeat(32));
    assert_eq!(
        (&*takeover.what, &*takeover.target),
        ("partition.takeover", "executor-1")
    );
    let after = takeover.after.as_ref().unwrap();
    assert_eq!(after["epochs"], json!({"0": 7, "3": 9}));
    for entry in &log {
        let origin = (
            entry.origin.actor_kind.as_deref(),
            entry.origin.via.as_deref(),
        );
        assert_eq!(origin, (Some("system"), Some("process")));
    }
    let check = check_chain(&*store, None).await.unwrap();
    assert_eq!((check.entries, check.broken, check.unchained), (2, None, 0));
}
