//! Policy documents: their versions, the set that they make, and by which version partitions decide.

use std::sync::Arc;

use attune_core::policy::Content;
use attune_core::{ActionPolicy, PolicyScope, PolicyTarget, Priority, RequestId};
use attune_store::What;
use attune_store::{
    Batch, DocumentChange, PolicyChanges, PolicyOutcome, PolicyVersion, Store, StoredPolicies,
};
use serde_json::{Value, json};

use super::support::{PARTITIONS, World, fenced, ref_in, spec};

fn target(scope: PolicyScope, name: &str) -> PolicyTarget {
    PolicyTarget::of(scope, name).unwrap()
}

fn ann() -> PolicyTarget {
    target(PolicyScope::User, "ann 'Größe' 漢字")
}

fn defaults(max_length: u32) -> DocumentChange {
    DocumentChange::Document(json!({"action_defaults": {"queue": {"max_length": max_length}}}))
}

async fn changes(
    store: &Arc<dyn Store>,
    documents: Vec<(PolicyTarget, DocumentChange)>,
) -> PolicyChanges {
    PolicyChanges {
        request_id: RequestId::fresh(),
        who: "ann".into(),
        reason: Some("a new host".to_owned()),
        mark: store.policy_mark().await.unwrap(),
        documents,
    }
}

async fn stored(store: &Arc<dyn Store>, changes: &PolicyChanges) -> (i64, Vec<PolicyVersion>) {
    match store.change_policies(changes).await.unwrap() {
        PolicyOutcome::Stored {
            set_version,
            versions,
        } => (set_version, versions),
        PolicyOutcome::Stale => panic!("something else is stored"),
    }
}

async fn change(
    store: &Arc<dyn Store>,
    of: &PolicyTarget,
    change: DocumentChange,
) -> (i64, PolicyVersion) {
    let changes = changes(store, vec![(of.clone(), change)]).await;
    let (set_version, mut versions) = stored(store, &changes).await;
    (set_version, versions.remove(0))
}

async fn set(store: &Arc<dyn Store>) -> StoredPolicies {
    store.policies(None).await.unwrap().unwrap()
}

/// Each change is a version of its document and one of the set; what was taken back is not in force, and an
/// older version can be applied again.
pub async fn documents_have_versions_in_the_order_of_the_commits(store: Arc<dyn Store>) {
    assert_eq!(set(&store).await, StoredPolicies::default());
    let (global, pack) = (PolicyTarget::Global, target(PolicyScope::Pack, "core"));
    let user =
        DocumentChange::Document(json!({"tier": "gold", "policy": {"priority": {"max": "low"}}}));
    let mut last = Vec::new();
    for (n, (target, change_to)) in [
        (&global, defaults(5)),
        (&pack, defaults(6)),
        (&ann(), user),
        (&global, defaults(7)),
    ]
    .into_iter()
    .enumerate()
    {
        let (set_version, version) = change(&store, target, change_to).await;
        assert_eq!(set_version, i64::try_from(n).unwrap() + 1);
        assert_eq!(version.set_version, Some(set_version));
        last.push(version);
    }
    let now = set(&store).await;
    assert_eq!(now.version, 4);
    assert_eq!(
        now.documents,
        [last[3].clone(), last[1].clone(), last[2].clone()]
    );
    let (decided, unreadable) = now.set();
    assert_eq!((decided.version, unreadable), (4, Vec::new()));
    assert_eq!(decided.global.unwrap().queue.max_length, Some(7));
    assert_eq!(decided.packs["core"].queue.max_length, Some(6));
    let said = &decided.users[ann().name()];
    assert_eq!(
        (said.tier.as_deref(), said.max_priority),
        (Some("gold"), Some(Priority::Low))
    );

    let (_, removed) = change(&store, &global, DocumentChange::Removed).await;
    assert_eq!((removed.version, removed.document.as_ref()), (3, None));
    assert_eq!(set(&store).await.find(&global), None);
    let history = store.policy_versions(&global, None, 10).await.unwrap();
    assert_eq!(history, [removed, last[3].clone(), last[0].clone()]);
    let older = store.policy_versions(&global, Some(2), 10).await.unwrap();
    assert_eq!(older, [last[0].clone()]);
    assert_eq!(
        store.policy_versions(&global, None, 1).await.unwrap().len(),
        1
    );

    let again = DocumentChange::Document(last[0].document.clone().unwrap());
    let (set_version, version) = change(&store, &global, again).await;
    assert_eq!((set_version, version.version), (6, 4));
    let document = version.document.clone().unwrap();
    let read = Content::from_stored(&global, document).unwrap();
    assert_eq!(Some(read.stored()), last[0].document);
    assert_eq!(set(&store).await.find(&global), Some(&version));

    let log = store.audit_log(None, 20).await.unwrap();
    assert_eq!(log.len(), 6);
    let removal = &log[1];
    assert_eq!(
        (
            removal.what.as_str(),
            removal.who.as_str(),
            removal.target.as_str()
        ),
        (What::PolicyRemove.name(), "ann", "global")
    );
    assert_eq!(
        (removal.before.as_ref(), removal.after.as_ref()),
        (last[3].document.as_ref(), None)
    );
    assert_eq!(removal.reason.as_deref(), Some("a new host"));
    assert_eq!(
        (log[0].before.as_ref(), log[0].after.as_ref()),
        (None, last[0].document.as_ref())
    );
}

/// Whoever has checked against an older set, or against other actions, writes nothing.
pub async fn what_was_checked_against_something_else_is_not_stored(store: Arc<dyn Store>) {
    let documents = vec![(PolicyTarget::Global, defaults(5))];
    let stale = changes(&store, documents.clone()).await;
    change(&store, &ann(), DocumentChange::Document(json!({}))).await;
    assert_eq!(
        store.change_policies(&stale).await.unwrap(),
        PolicyOutcome::Stale
    );

    let stale = changes(&store, documents.clone()).await;
    let mut of_action = spec(&ref_in(1, "a"));
    store
        .apply_action(&of_action, PARTITIONS, "bob")
        .await
        .unwrap();
    assert_eq!(
        store.change_policies(&stale).await.unwrap(),
        PolicyOutcome::Stale
    );

    let stale = changes(&store, documents.clone()).await;
    of_action.policy.queue.max_length = Some(3);
    store
        .apply_action(&of_action, PARTITIONS, "bob")
        .await
        .unwrap();
    assert_eq!(
        store.change_policies(&stale).await.unwrap(),
        PolicyOutcome::Stale
    );
    let now = set(&store).await;
    assert_eq!((now.version, now.documents.len()), (1, 1));
    assert_eq!(store.audit_log(None, 10).await.unwrap().len(), 1);
    stored(&store, &changes(&store, documents).await).await;
}

/// Several documents have one version of the set; when one of them cannot be stored none is.
pub async fn many_changes_are_stored_together_or_not_at_all(store: Arc<dyn Store>) {
    let pack = target(PolicyScope::Pack, "core");
    let both = vec![
        (PolicyTarget::Global, defaults(5)),
        (pack.clone(), defaults(6)),
    ];
    let (set_version, versions) = stored(&store, &changes(&store, both).await).await;
    assert_eq!((set_version, versions.len()), (1, 2));
    assert_eq!(store.audit_log(None, 10).await.unwrap().len(), 2);
    // There is no such action.
    let gone = spec(&ref_in(2, "gone"));
    let half = vec![
        (pack, DocumentChange::Removed),
        (
            PolicyTarget::Action(gone.action_ref.clone()),
            DocumentChange::Action(Box::new(gone)),
        ),
    ];
    let half = changes(&store, half).await;
    assert!(store.change_policies(&half).await.is_err());
    let now = set(&store).await;
    assert_eq!((now.version, now.documents), (1, versions));
    assert_eq!(store.audit_log(None, 10).await.unwrap().len(), 2);
}

/// The action has a new version, and its policy has one that tells who changed it and why.
pub async fn the_policy_of_an_action_is_changed_in_the_action(store: Arc<dyn Store>) {
    let mut wanted = spec(&ref_in(3, "a"));
    let applied = store
        .apply_action(&wanted, PARTITIONS, "bob")
        .await
        .unwrap();
    wanted.policy.concurrency.limit = Some(4);
    let of = PolicyTarget::Action(wanted.action_ref.clone());
    let by_document = DocumentChange::Action(Box::new(wanted.clone()));
    let (set_version, version) = change(&store, &of, by_document).await;
    assert_eq!(
        (version.version, version.set_version),
        (2, Some(set_version))
    );
    let action = store
        .find_action(&wanted.action_ref)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (action.id, action.version, &action.spec),
        (applied.action.id, 2, &wanted)
    );
    assert!(
        set(&store).await.documents.is_empty(),
        "it stands in the action"
    );
    let history = store.policy_versions(&of, None, 10).await.unwrap();
    let seen: Vec<_> = history
        .iter()
        .map(|it| (it.version, it.set_version, it.who.as_str()))
        .collect();
    assert_eq!(seen, [(2, Some(set_version), "ann"), (1, None, "bob")]);
    assert_eq!(history[0].document.as_ref().map(limit_of), Some(json!(4)));
    // Taken back, the action has a policy without limits.
    wanted.policy = ActionPolicy::default();
    let taken_back = DocumentChange::Action(Box::new(wanted));
    change(&store, &of, taken_back).await;
    let log = store.audit_log(None, 2).await.unwrap();
    let entries: Vec<_> = log.iter().map(|entry| entry.what.as_str()).collect();
    assert_eq!(
        entries,
        [What::PolicyRemove.name(), What::PolicyApply.name()]
    );
    assert_eq!(store.policy_changes(action.id).await.unwrap().len(), 3);
    let unknown = PolicyTarget::Action(ref_in(0, "unknown"));
    assert_eq!(store.policy_versions(&unknown, None, 10).await.unwrap(), []);
}

fn limit_of(policy: &Value) -> Value {
    policy["concurrency"]["limit"].clone()
}

/// What an action inherits cannot change between its check and its storing.
pub async fn an_action_is_applied_under_the_set_it_was_checked_under(store: Arc<dyn Store>) {
    let wanted = spec(&ref_in(2, "a"));
    let under = store.policy_mark().await.unwrap().set_version;
    change(&store, &PolicyTarget::Global, defaults(5)).await;
    let bob = "bob".into();
    let late = store.apply_action_under(&wanted, PARTITIONS, &bob, under);
    assert_eq!(late.await.unwrap(), None);
    assert_eq!(store.find_action(&wanted.action_ref).await.unwrap(), None);
    let applied = store.apply_action_under(&wanted, PARTITIONS, &bob, under + 1);
    assert!(applied.await.unwrap().unwrap().created);
}

/// Whoever knows a set is told of newer ones alone.
pub async fn a_policy_set_is_read_when_it_is_newer(store: Arc<dyn Store>) {
    assert_eq!(store.policies(Some(0)).await.unwrap(), None);
    change(&store, &ann(), DocumentChange::Document(json!({}))).await;
    let newer = store.policies(Some(0)).await.unwrap().unwrap();
    assert_eq!(newer, set(&store).await);
    assert_eq!(store.policies(Some(newer.version)).await.unwrap(), None);
    // A set that is empty again is a newer one as well.
    change(&store, &ann(), DocumentChange::Removed).await;
    let empty = store.policies(Some(newer.version)).await.unwrap().unwrap();
    assert_eq!((empty.version, empty.documents), (2, Vec::new()));
}

/// Those who change it at once make versions that follow each other, and none is lost.
pub async fn racing_changes_make_one_set(store: Arc<dyn Store>) {
    let operators: Vec<_> = (0..6)
        .map(|n| {
            let (store, of) = (
                Arc::clone(&store),
                target(PolicyScope::User, &format!("u{n}")),
            );
            tokio::spawn(async move {
                let mut own = Vec::new();
                while own.len() < 3 {
                    let document =
                        DocumentChange::Document(json!({"tier": format!("t{}", own.len())}));
                    let changes = changes(&store, vec![(of.clone(), document)]).await;
                    match store.change_policies(&changes).await.unwrap() {
                        PolicyOutcome::Stored { set_version, .. } => own.push(set_version),
                        PolicyOutcome::Stale => {}
                    }
                }
                own
            })
        })
        .collect();
    let mut all = Vec::new();
    for operator in operators {
        let own = operator.await.unwrap();
        assert!(own.is_sorted());
        all.extend(own);
    }
    all.sort_unstable();
    assert_eq!(all, (1..=18).collect::<Vec<i64>>());
    assert_eq!(set(&store).await.documents.len(), 6);
}

/// Owners write by which version they decide; it never falls, and who was overtaken writes nothing.
pub async fn progress_rises_under_the_fence(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    assert_eq!(store.policy_progress().await.unwrap(), []);
    let goes_by = |versions: &[i64]| Batch {
        policies: world
            .held
            .iter()
            .map(|(partition, _)| *partition)
            .zip(versions.iter().copied())
            .collect(),
        ..world.batch()
    };
    world.commit(&goes_by(&[1, 4])).await;
    world.commit(&goes_by(&[3, 2, 1])).await;
    let seen = |rows: Vec<(attune_core::PartitionId, i64)>| -> Vec<_> {
        rows.iter()
            .map(|(partition, version)| (partition.0, *version))
            .collect()
    };
    let rows = store.policy_progress().await.unwrap();
    assert_eq!(seen(rows), [(0, 3), (1, 4), (2, 1)]);
    let late = goes_by(&[9, 9, 9, 9]);
    world.lose(1).await;
    assert_eq!(fenced(store.commit(&late).await), [1]);
    let rows = store.policy_progress().await.unwrap();
    assert_eq!(seen(rows), [(0, 3), (1, 4), (2, 1)]);
}
