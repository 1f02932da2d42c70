//! What executions demand of the limits of their action, and what they say by which that is found out.

use std::sync::Arc;

use attune_core::{Attempt, Demand, Flow, GroupKey, Status, Submission};
use attune_store::{ActiveRow, Store};

use crate::support::{World, grant, raw};

/// A demand comes back wherever an owner reads executions, until the execution ends.
pub async fn demands_are_kept(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(3, "a").await;
    let demand = Demand {
        rule: i64::MIN,
        group: GroupKey([0xa5; 16]),
        cost: 513,
        user: Some(GroupKey([0x5a; 16])),
        rate: GroupKey::default(),
        flow: Flow::of(&[GroupKey([1; 16]), GroupKey([2; 16])]).expect("two keys"),
    };
    let mut demanding = world.queued(&action);
    demanding.demand = Some(demand);
    let inserted = world.insert(vec![demanding, world.queued(&action)]).await;
    let (id, plain) = (inserted[0], inserted[1]);
    let seen = |rows: &[ActiveRow]| {
        let mut seen: Vec<_> = rows.iter().map(|row| (row.id, row.demand)).collect();
        seen.sort_unstable_by_key(|(id, _)| *id);
        seen
    };
    let mut expected = vec![(id, Some(demand)), (plain, None)];
    expected.sort_unstable_by_key(|(id, _)| *id);
    let page = store
        .load_partition(action.partition, None, 10)
        .await
        .unwrap();
    assert_eq!(seen(&page.rows), expected);
    let slice = store
        .scan_active(&[action.partition], None, 100)
        .await
        .unwrap();
    assert_eq!(seen(&slice.rows), expected);
    world.update(vec![grant(id, 1)]).await;
    let slots = store.load_slots(&[id]).await.unwrap();
    assert_eq!(slots[0].attempt, Attempt(1));
    assert_eq!(slots[0].demand, Some(demand));
}

/// What executions say is told of all that are active, and of nothing else.
pub async fn words_are_told_while_active(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(3, "a").await;
    let mut submission = Submission::new(action.spec.action_ref.as_str());
    submission.requested_by = Some("ann".to_owned());
    submission.group = Some("blue".to_owned());
    submission.labels = [("gpus".to_owned(), "4".to_owned())].into();
    submission.parameters = raw(r#"{"host":{"b":1.50}}"#);
    let new = vec![
        world.queued_with(&action, submission),
        world.queued(&action),
        world.requested(&action),
    ];
    let inserted = world.insert(new).await;
    let (told, silent, ended) = (inserted[0], inserted[1], inserted[2]);
    world.end(&[ended], Status::Succeeded).await;
    let unknown = world.queued(&action).id;

    let asked = [unknown, ended, silent, told];
    let mut words = store.load_words(&asked).await.unwrap();
    words.sort_unstable_by_key(|words| words.id != told);
    assert_eq!(words.len(), 2);
    let [one, other] = &words[..] else {
        unreachable!("two were told");
    };
    assert_eq!((one.id, other.id), (told, silent));
    assert_eq!(one.requested_by.as_deref(), Some("ann"));
    assert_eq!(one.group.as_deref(), Some("blue"));
    assert_eq!(one.labels.get("gpus").map(String::as_str), Some("4"));
    let parameters: serde_json::Value = serde_json::from_str(one.parameters.get()).unwrap();
    assert_eq!(parameters, serde_json::json!({"host": {"b": 1.5}}));
    assert_eq!((&other.requested_by, &other.group), (&None, &None));
    assert!(other.labels.is_empty());
    assert_eq!(other.parameters.get(), "{}");
}
