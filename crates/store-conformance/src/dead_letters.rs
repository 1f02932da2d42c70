//! Messages that nobody could use.

use std::sync::Arc;
use std::time::Duration;

use attune_core::RequestId;
use serde_json::json;
use uuid::Uuid;

use super::support::{LONG, World, fenced};
use attune_store::What;
use attune_store::{
    Batch, DeadLetter, DeadLetterFilter, DeadLetterRetention, LETTER_OVERHEAD, NewDeadLetter,
    Requeue, Store,
};

/// A message of which everything is kept.
fn letter(source: &str, reason: &str, body: &[u8]) -> NewDeadLetter {
    NewDeadLetter {
        message_id: Uuid::now_v7(),
        reason: reason.to_owned(),
        source: source.to_owned(),
        body: body.to_vec(),
        bytes: body.len() as u64,
        sender: Some("shop \u{1F980}".to_owned()),
    }
}

async fn all(store: &dyn Store) -> Vec<DeadLetter> {
    let filter = DeadLetterFilter::default();
    store.list_dead_letters(&filter, None, 1_000).await.unwrap()
}

fn requeue(letter: &DeadLetter) -> Requeue {
    Requeue {
        id: letter.id,
        arrivals: letter.arrivals,
        request_id: RequestId::fresh(),
        who: "ann".into(),
        reason: Some("the action exists now".to_owned()),
    }
}

/// A letter comes back as it was, whatever bytes it has; filters and pages select.
pub async fn letters_are_kept_and_listed(store: Arc<dyn Store>) {
    let binary: Vec<u8> = (0..=255).cycle().take(3_000).collect();
    let cut = NewDeadLetter {
        bytes: 1_000_000,
        ..letter("enforcement.created", "not an envelope", &binary)
    };
    let whole = letter("execution.completed", "no such \u{1F980}", b"{}");
    let empty = letter("execution.completed", "not an envelope", b"");
    store.add_dead_letters(&[]).await.unwrap();
    store
        .add_dead_letters(&[cut.clone(), whole.clone(), empty.clone()])
        .await
        .unwrap();
    let kept = all(&*store).await;
    assert!(kept.is_sorted_by(|a, b| a.id > b.id), "{kept:?}");
    assert_eq!(kept.len(), 3);
    for new in [&cut, &whole, &empty] {
        let row = kept.iter().find(|row| row.message_id == new.message_id);
        let row = row.unwrap();
        assert_eq!((&row.reason, &row.source), (&new.reason, &new.source));
        assert_eq!((row.bytes, row.arrivals), (new.bytes, 1));
        assert_eq!(row.sender, new.sender);
        assert_eq!(row.truncated, new.message_id == cut.message_id);
        assert_eq!((row.requeued_at, &row.requeued_by), (None, &None));
        let (found, body) = store.find_dead_letter(row.id).await.unwrap().unwrap();
        assert_eq!((&found, &body), (row, &new.body));
    }
    assert_eq!(store.find_dead_letter(i64::MAX).await.unwrap(), None);

    let listed = async |filter: DeadLetterFilter, before, limit| {
        let found = store.list_dead_letters(&filter, before, limit).await;
        found.unwrap()
    };
    let page = listed(DeadLetterFilter::default(), Some(kept[0].id), 1).await;
    assert_eq!(page, kept[1..2]);
    let filter = DeadLetterFilter {
        source: Some(cut.source.clone()),
        reason: Some(cut.reason.clone()),
        requeued: Some(false),
    };
    let found = listed(filter.clone(), None, 10).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].message_id, cut.message_id);
    let filter = DeadLetterFilter {
        requeued: Some(true),
        ..filter
    };
    assert_eq!(listed(filter, None, 10).await, []);
}

/// A message that comes again, in the same call too, has the letter that it had.
pub async fn a_message_has_one_letter(store: Arc<dyn Store>) {
    let first = letter("queue.stats", "too large", b"one");
    store
        .add_dead_letters(std::slice::from_ref(&first))
        .await
        .unwrap();
    let again = NewDeadLetter {
        reason: "refused".to_owned(),
        body: b"three".to_vec(),
        bytes: 5,
        sender: None,
        ..first.clone()
    };
    store
        .add_dead_letters(&[first.clone(), again.clone()])
        .await
        .unwrap();
    let kept = all(&*store).await;
    assert_eq!(kept.len(), 1);
    assert!(kept[0].arrivals > 1, "{kept:?}");
    assert_eq!((&kept[0].reason, &kept[0].sender), (&again.reason, &None));
    let (_, body) = store.find_dead_letter(kept[0].id).await.unwrap().unwrap();
    assert_eq!(body, again.body);
}

/// The mark is set once, with an entry in the audit log; a message that comes again waits again,
/// and a mark that was decided before that misses.
pub async fn a_letter_is_put_back_once_and_audited(store: Arc<dyn Store>) {
    let new = letter("enforcement.created", "no such action", b"{}");
    store
        .add_dead_letters(std::slice::from_ref(&new))
        .await
        .unwrap();
    let seen = all(&*store).await.remove(0);
    let mark = requeue(&seen);
    assert!(store.begin_requeue(&mark).await.unwrap());
    assert_eq!(
        all(&*store).await,
        std::slice::from_ref(&seen),
        "nothing is done yet"
    );
    assert!(store.mark_requeued(&mark).await.unwrap());
    assert!(!store.mark_requeued(&mark).await.unwrap());
    assert!(!store.begin_requeue(&requeue(&seen)).await.unwrap());
    let marked = all(&*store).await.remove(0);
    assert!(marked.requeued_at.is_some());
    assert_eq!(marked.requeued_by.as_deref(), Some("ann"));
    let log = store.audit_log(None, 10).await.unwrap();
    let [done, begun] = &log[..] else {
        panic!("two entries are wanted: {log:?}");
    };
    assert_eq!(done.what, What::DeadLetterRequeue.name());
    assert_eq!(done.request_id, mark.request_id);
    assert_eq!(begun.what, What::DeadLetterRequeueBegun.name());
    assert_eq!(begun.request_id, mark.intent_id());
    let before = json!({"letter": seen.id, "source": new.source, "reason": new.reason});
    for entry in &log {
        assert_eq!(entry.target, new.message_id.to_string());
        assert_eq!((&entry.who, &entry.reason), (&mark.who.name, &mark.reason));
        assert_eq!(entry.before.as_ref(), Some(&before));
    }

    store
        .add_dead_letters(std::slice::from_ref(&new))
        .await
        .unwrap();
    let back = all(&*store).await.remove(0);
    assert_eq!((back.id, back.requeued_at), (seen.id, None));
    let late = Requeue {
        request_id: RequestId::fresh(),
        ..mark
    };
    assert!(!store.begin_requeue(&late).await.unwrap());
    assert!(!store.mark_requeued(&late).await.unwrap());
    assert!(store.mark_requeued(&requeue(&back)).await.unwrap());
    assert_eq!(store.audit_log(None, 10).await.unwrap().len(), 3);
}

/// What an owner could not use is kept in the transaction that acknowledges it; a batch that is
/// repeated leaves one letter.
pub async fn a_letter_is_written_with_its_batch(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let batch = Batch {
        inserts: vec![world.queued(&action)],
        letters: vec![
            letter("enforcement.created", "no such action", b"{}"),
            letter("enforcement.created", "deep", "\u{1F980}\0".as_bytes()),
        ],
        ..world.batch()
    };
    world.commit(&batch).await;
    world.commit(&batch).await;
    assert_eq!(world.active_ids().await, [batch.inserts[0].id]);
    let kept = all(&*store).await;
    assert_eq!(kept.len(), 2);
    for new in &batch.letters {
        let mut kept = kept.iter();
        let kept = kept.find(|kept| kept.message_id == new.message_id);
        let (kept, body) = store
            .find_dead_letter(kept.unwrap().id)
            .await
            .unwrap()
            .unwrap();
        assert_eq!((&kept.reason, &kept.source), (&new.reason, &new.source));
        assert_eq!(body, new.body);
    }
    // Letters alone are a batch too.
    let alone = Batch {
        letters: vec![letter("enforcement.created", "alone", b"{}")],
        ..world.batch()
    };
    assert!(!alone.is_empty());
    world.commit(&alone).await;
    assert_eq!(all(&*store).await.len(), 3);
}

/// A stale owner keeps nothing: its messages come again, to the owner that there is.
pub async fn a_fenced_batch_leaves_no_letter(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    world.lose(1).await;
    let batch = Batch {
        letters: vec![letter("enforcement.created", "no such action", b"{}")],
        ..world.batch()
    };
    assert_eq!(fenced(store.commit(&batch).await), [1]);
    assert_eq!(all(&*store).await, []);
}

/// Age and size bound the letters; those that came last stay.
pub async fn old_letters_go_first(store: Arc<dyn Store>) {
    let letters: Vec<_> = (0..5).map(|_| letter("a", "b", &[7; 1_000])).collect();
    for letter in &letters {
        store
            .add_dead_letters(std::slice::from_ref(letter))
            .await
            .unwrap();
    }
    let each = 1_000 + LETTER_OVERHEAD;
    let mut keep = DeadLetterRetention {
        age: LONG,
        bytes: each * 5,
    };
    assert_eq!(store.prune_dead_letters(keep).await.unwrap(), 0);
    keep.bytes = each * 3 - 1;
    assert_eq!(store.prune_dead_letters(keep).await.unwrap(), 3);
    let left: Vec<Uuid> = all(&*store)
        .await
        .iter()
        .map(|row| row.message_id)
        .collect();
    assert_eq!(left, [letters[4].message_id, letters[3].message_id]);
    keep.bytes = u64::MAX;
    keep.age = Duration::MAX;
    assert_eq!(store.prune_dead_letters(keep).await.unwrap(), 0);
    keep.age = Duration::ZERO;
    super::support::eventually("the clock moves on", async || {
        let gone = store.prune_dead_letters(keep).await.unwrap();
        (gone > 0 || all(&*store).await.is_empty()).then_some(())
    })
    .await;
    assert_eq!(all(&*store).await, []);
}
