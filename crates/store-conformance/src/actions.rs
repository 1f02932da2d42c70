//! Actions and the history of their policies.

use std::sync::Arc;

use attune_core::{ActionId, ActionRef, ActionSpec, PartitionId};

use super::support::{PARTITIONS, ref_in, spec};
use attune_store::{Applied, Store};

/// Applying creates, changes, or finds nothing to do; what comes back is what was written.
pub async fn an_action_is_created_changed_and_kept(store: Arc<dyn Store>) {
    let mut wanted = spec(&ref_in(3, "a"));
    wanted.description = "Größe – 漢字 🦀 'quoted'".to_owned();
    wanted.parameters = Some(serde_json::json!({"type": "object", "maximum": 1.5}));
    wanted.env.insert("KEY".to_owned(), "v=1".into());
    let first = apply(&store, &wanted, "ada").await;
    assert_eq!((first.created, first.changed), (true, true));
    assert_eq!(first.action.version, 1);
    assert_eq!(first.action.partition, PartitionId(3));
    assert_eq!(first.action.spec, wanted);

    let same = apply(&store, &wanted, "bob").await;
    assert_eq!((same.created, same.changed), (false, false));
    assert_eq!(same.action, first.action);

    wanted.timeout_seconds = 5;
    let changed = apply(&store, &wanted, "bob").await;
    assert_eq!((changed.created, changed.changed), (false, true));
    assert_eq!(changed.action.version, 2);
    assert_eq!(changed.action.id, first.action.id);
    assert_eq!(changed.action.spec, wanted);
    let found = store.find_action(&wanted.action_ref).await.unwrap();
    assert_eq!(found, Some(changed.action));
}

/// Each change of a policy is a version with its author; other changes are none.
pub async fn a_policy_has_a_history(store: Arc<dyn Store>) {
    let mut wanted = spec(&ref_in(0, "a"));
    wanted.policy.concurrency.limit = Some(2);
    let first_policy = wanted.policy.clone();
    let id = apply(&store, &wanted, "ada").await.action.id;
    let other = spec(&ref_in(0, "other"));
    apply(&store, &other, "eve").await;
    wanted.description = "said otherwise".to_owned();
    apply(&store, &wanted, "bob").await;
    wanted.policy.concurrency.limit = Some(5);
    wanted.policy.queue.max_length = Some(100);
    wanted.policy.queue.timeout_seconds = Some(60);
    let last = apply(&store, &wanted, "cy").await;
    assert_eq!(last.action.version, 3);

    let changes = store.policy_changes(id).await.unwrap();
    let seen: Vec<_> = changes
        .iter()
        .map(|change| {
            let policy = change.policy.clone();
            (change.version, policy, change.changed_by.as_str())
        })
        .collect();
    assert_eq!(
        seen,
        vec![(2, wanted.policy, "cy"), (1, first_policy, "ada")]
    );
    assert!(changes[0].changed_at >= changes[1].changed_at);
    let none = store.policy_changes(ActionId(987_654)).await.unwrap();
    assert_eq!(none, vec![]);
}

/// Several who apply the same action at once make one action, and none of them fails.
pub async fn racing_authors_create_an_action_once(store: Arc<dyn Store>) {
    let specs = ActionSpec::core_pack();
    let authors: Vec<_> = (0..4)
        .map(|_| {
            let (store, specs) = (Arc::clone(&store), specs.clone());
            tokio::spawn(async move {
                let mut created = 0;
                for spec in &specs {
                    created += usize::from(apply(&store, spec, "start").await.created);
                }
                created
            })
        })
        .collect();
    let mut created = 0;
    for author in authors {
        created += author.await.unwrap();
    }
    assert_eq!(created, specs.len());
    let all = store.list_actions(None, 100).await.unwrap();
    assert_eq!(all.len(), specs.len());
    for action in all {
        assert_eq!(action.version, 1);
        let changes = store.policy_changes(action.id).await.unwrap();
        assert_eq!(changes.len(), 1);
    }
}

/// Pages follow the order of the refs' bytes, which no language's collation disturbs.
pub async fn actions_are_listed_by_ref(store: Arc<dyn Store>) {
    assert_eq!(store.list_actions(None, 10).await.unwrap(), vec![]);
    let mut refs: Vec<ActionRef> = ["p.ab", "p.a_b", "p.a-b", "p.a.b", "p.a1", "p-x.a", "q.a"]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    for action_ref in &refs {
        apply(&store, &spec(action_ref), "suite").await;
    }
    refs.sort();
    let (mut found, mut after): (Vec<ActionRef>, Option<ActionRef>) = (Vec::new(), None);
    loop {
        let page = store.list_actions(after.as_ref(), 3).await.unwrap();
        assert!(page.len() <= 3);
        found.extend(page.iter().map(|action| action.spec.action_ref.clone()));
        if page.is_empty() {
            break;
        }
        after = found.last().cloned();
    }
    assert_eq!(found, refs);
}

/// An owner finds actions by the refs that its submissions name and by its partitions.
pub async fn actions_are_looked_up_by_ref_and_partition(store: Arc<dyn Store>) {
    let (one, two) = (spec(&ref_in(1, "one")), spec(&ref_in(2, "two")));
    let first = apply(&store, &one, "suite").await.action;
    let second = apply(&store, &two, "suite").await.action;
    let asked = [
        two.action_ref.to_string(),
        "no.such".to_owned(),
        two.action_ref.to_string(),
    ];
    let found = store.look_up(&[], &asked).await.unwrap();
    assert_eq!(found.actions, vec![second.clone()]);
    let mine = store.load_actions(&[PartitionId(1)]).await.unwrap();
    assert_eq!(mine, vec![first]);
    let both = [PartitionId(2), PartitionId(1), PartitionId(0)];
    assert_eq!(store.load_actions(&both).await.unwrap().len(), 2);
}

async fn apply(store: &Arc<dyn Store>, spec: &ActionSpec, who: &str) -> Applied {
    store.apply_action(spec, PARTITIONS, who).await.unwrap()
}
