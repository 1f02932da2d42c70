//! Keys of clients.

use std::sync::Arc;
use std::time::Duration;

use attune_core::Asker;
use attune_identity::{Grants, Key, Rate, Rates, Role};
use attune_store::What;
use attune_store::{KeyOutcome, KeyRotation, KeyStanding, NewExecution, NewKey, Store};

use crate::support::World;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn new_key(name: &str) -> (Key, NewKey) {
    let key = Key::fresh().unwrap();
    let mut grants = Grants::new([Role::Submitter, Role::Worker]);
    grants.actions = vec!["shop.*".parse().unwrap()];
    grants.pools = vec!["batch".parse().unwrap()];
    let new = NewKey {
        id: key.id().clone(),
        hash: key.hash(),
        name: name.to_owned(),
        grants,
        lifetime: None,
        who: "ann".into(),
    };
    (key, new)
}

/// Everything that a key is given comes back, and each change is written down.
pub async fn a_key_is_kept_and_revoked(store: Arc<dyn Store>) {
    let (key, mut new) = new_key("ci");
    new.grants.impersonate = true;
    new.grants.max_waiting = Some(7);
    new.grants.rates = Rates {
        submit: Some(Rate {
            per_second: 5,
            burst: 9,
        }),
        ..Rates::default()
    };
    assert_eq!(store.find_key(key.id()).await.unwrap(), None);
    assert_eq!(
        store.create_key(&new, true).await.unwrap(),
        KeyOutcome::Stored
    );
    let found = store.find_key(key.id()).await.unwrap().unwrap();
    assert!(key.fits(&found.hash));
    assert_eq!((&found.name, &found.grants), (&new.name, &new.grants));
    assert_eq!(found.standing, KeyStanding::Good(None));
    assert_eq!((found.created_by.as_str(), found.last_used), ("ann", None));

    store
        .note_key_use(key.id(), Some("10.0.0.7"))
        .await
        .unwrap();
    let used = store.find_key(key.id()).await.unwrap().unwrap();
    assert!(used.last_used.unwrap() >= used.created);
    assert_eq!(used.last_ip.as_deref(), Some("10.0.0.7"));

    for _ in 0..2 {
        let revoked = store.revoke_key(key.id(), &"bob".into()).await.unwrap();
        assert_eq!(revoked, KeyOutcome::Stored);
    }
    let over = store.find_key(key.id()).await.unwrap().unwrap();
    assert_eq!(over.standing, KeyStanding::Revoked);
    assert_eq!(over.revoked_by.as_deref(), Some("bob"));
    assert_eq!(store.list_keys().await.unwrap(), [over]);

    let log = store.audit_log(None, 10).await.unwrap();
    let told: Vec<_> = log.iter().rev().map(|it| (&*it.what, &*it.who)).collect();
    assert_eq!(
        told,
        [
            (What::KeyCreate.name(), "ann"),
            (What::KeyRevoke.name(), "bob")
        ]
    );
    assert!(log.iter().all(|it| it.target == key.id().as_str()));
    let hash = format!("{:?}", key.hash().0);
    assert!(
        !format!("{log:?}").contains(&hash),
        "no part of the secret is told"
    );
}

/// One name stands for one key at a time, and only the first key is the first.
pub async fn a_name_is_of_one_key(store: Arc<dyn Store>) {
    let (key, new) = new_key("ci");
    let (_, again) = new_key("ci");
    let (_, other) = new_key("cd");
    assert_eq!(
        store.create_key(&new, true).await.unwrap(),
        KeyOutcome::Stored
    );
    for (new, first) in [(&new, false), (&again, false), (&other, true)] {
        assert_eq!(
            store.create_key(new, first).await.unwrap(),
            KeyOutcome::Taken
        );
    }
    assert_eq!(
        store.create_key(&other, false).await.unwrap(),
        KeyOutcome::Stored
    );
    store.revoke_key(key.id(), &"ann".into()).await.unwrap();
    assert_eq!(
        store.create_key(&again, false).await.unwrap(),
        KeyOutcome::Stored
    );
    let names: Vec<_> = store.list_keys().await.unwrap();
    let names: Vec<_> = names
        .iter()
        .map(|it| (&*it.name, it.revoked.is_some()))
        .collect();
    assert_eq!(names, [("cd", false), ("ci", true), ("ci", false)]);
    assert_eq!(store.audit_log(None, 10).await.unwrap().len(), 4);
}

/// A key that was rotated is good for a while beside the one in its place.
pub async fn a_key_is_rotated(store: Arc<dyn Store>) {
    let (old, new) = new_key("ci");
    store.create_key(&new, false).await.unwrap();
    let fresh = Key::fresh().unwrap();
    let rotation = |old: &Key, new: &Key, overlap| KeyRotation {
        old: old.id().clone(),
        id: new.id().clone(),
        hash: new.hash(),
        overlap,
        lifetime: Some(90 * DAY),
        who: "ann".into(),
    };
    let asked = rotation(&old, &fresh, DAY);
    assert_eq!(store.rotate_key(&asked).await.unwrap(), KeyOutcome::Stored);
    assert_eq!(store.rotate_key(&asked).await.unwrap(), KeyOutcome::Taken);
    let left = |standing| match standing {
        KeyStanding::Good(Some(left)) => left,
        other => panic!("{other:?}"),
    };
    let was = store.find_key(old.id()).await.unwrap().unwrap();
    assert!(left(was.standing) <= DAY && left(was.standing) > DAY / 2);
    let is = store.find_key(fresh.id()).await.unwrap().unwrap();
    assert!(left(is.standing) > DAY / 2 && fresh.fits(&is.hash));
    assert_eq!((is.name, is.grants), (was.name, was.grants));
    assert!(is.expires.unwrap() > was.expires.unwrap());

    let another = Key::fresh().unwrap();
    let again = store.rotate_key(&rotation(&old, &another, DAY)).await;
    assert_eq!(again.unwrap(), KeyOutcome::Replaced);

    // Once more, without an overlap: the one before is over at once.
    let third = Key::fresh().unwrap();
    let at_once = KeyRotation {
        lifetime: None,
        ..rotation(&fresh, &third, Duration::ZERO)
    };
    assert_eq!(
        store.rotate_key(&at_once).await.unwrap(),
        KeyOutcome::Stored
    );
    let was = store.find_key(fresh.id()).await.unwrap().unwrap();
    assert_eq!(was.standing, KeyStanding::Expired);
    let is = store.find_key(third.id()).await.unwrap().unwrap();
    let life = is.expires.unwrap() - is.created;
    let days = life.as_seconds_f64() / DAY.as_secs_f64();
    assert!(
        (89.9..90.1).contains(&days),
        "as long as the one before: {days}"
    );
    let next = Key::fresh().unwrap();
    let late = store
        .rotate_key(&rotation(&fresh, &next, DAY))
        .await
        .unwrap();
    assert_eq!(late, KeyOutcome::Over);
    let unknown = rotation(&next, &Key::fresh().unwrap(), DAY);
    assert_eq!(
        store.rotate_key(&unknown).await.unwrap(),
        KeyOutcome::Unknown
    );
    let unknown = store.revoke_key(next.id(), &"ann".into()).await.unwrap();
    assert_eq!(unknown, KeyOutcome::Unknown);
    let log = store.audit_log(None, 10).await.unwrap();
    assert_eq!(log.len(), 3);
    assert_eq!(
        (&*log[0].what, &*log[0].target),
        (What::KeyRotate.name(), fresh.id().as_str())
    );
}

/// What waits is counted by who has asked for it, and a new owner knows that too.
pub async fn what_waits_of_an_asker_is_counted(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "one").await;
    let [ann, bob] = ["ann", "bob"].map(Asker::of);
    let of = |asker, new| NewExecution { asker, ..new };
    let ids = world
        .insert(vec![
            of(Some(ann), world.queued(&action)),
            of(Some(ann), world.queued(&action)),
            of(Some(ann), world.requested(&action)),
            of(Some(bob), world.queued(&action)),
            world.queued(&action),
        ])
        .await;
    assert_eq!(store.count_waiting(ann).await.unwrap(), 2);
    assert_eq!(store.count_waiting(bob).await.unwrap(), 1);
    assert_eq!(store.count_waiting(Asker::of("eve")).await.unwrap(), 0);
    let slots = store.load_slots(&ids).await.unwrap();
    assert_eq!(slots[0].asker, Some(ann));
}
