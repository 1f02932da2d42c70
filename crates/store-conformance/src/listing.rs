//! Lists of executions: filters, order and pages.

use std::sync::Arc;

use attune_core::{Action, Attempt, ExecutionId, Priority, Status, Submission};

use super::support::World;
use attune_store::{Bodies, ExecutionFilter, ExecutionRecord, NewExecution, Store};

/// Every filter selects alone and together with the others, over active and ended ones.
pub async fn every_filter_selects(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (one, two) = (world.action(0, "one").await, world.action(1, "two").await);
    let queued = of(&world, &one, "ada", None);
    let requested = NewExecution {
        status: Status::Requested,
        attempt: Attempt(1),
        ..of(&world, &two, "ada", Some("g"))
    };
    let ended = of(&world, &one, "bob", Some("g"));
    let expired = of(&world, &two, "bob", None);
    let ids = world.insert(vec![queued, requested, ended, expired]).await;
    world.end(&[ids[2]], Status::Succeeded).await;
    world.end(&[ids[3]], Status::Expired).await;

    let action = |action: &Action| ExecutionFilter {
        action_ref: Some(action.spec.action_ref.to_string()),
        ..ExecutionFilter::default()
    };
    let status = |statuses: &[Status]| ExecutionFilter {
        statuses: statuses.to_vec(),
        ..ExecutionFilter::default()
    };
    let user = |user: &str| ExecutionFilter {
        requested_by: Some(user.to_owned()),
        ..ExecutionFilter::default()
    };
    let group = |group: &str| ExecutionFilter {
        group: Some(group.to_owned()),
        ..ExecutionFilter::default()
    };
    let priorities = |priorities: &[Priority]| ExecutionFilter {
        priorities: priorities.to_vec(),
        ..ExecutionFilter::default()
    };
    let unknown = ExecutionFilter {
        action_ref: Some("no.such".to_owned()),
        ..ExecutionFilter::default()
    };
    let together = ExecutionFilter {
        statuses: vec![Status::Succeeded, Status::Queued],
        requested_by: Some("bob".to_owned()),
        group: Some("g".to_owned()),
        ..action(&one)
    };
    for (filter, expected) in [
        (ExecutionFilter::default(), vec![0, 1, 2, 3]),
        (action(&one), vec![0, 2]),
        (action(&two), vec![1, 3]),
        (unknown, vec![]),
        (status(&[Status::Queued]), vec![0]),
        (status(&[Status::Requested, Status::Succeeded]), vec![1, 2]),
        (status(&[Status::Running]), vec![]),
        (status(&Status::ALL), vec![0, 1, 2, 3]),
        (user("ada"), vec![0, 1]),
        (user("eve"), vec![]),
        (group("g"), vec![1, 2]),
        (priorities(&[Priority::Normal]), vec![0, 1, 2, 3]),
        (priorities(&[Priority::High, Priority::Low]), vec![]),
        (together, vec![2]),
    ] {
        let page = store.list_executions(&filter, None, 10).await.unwrap();
        assert_eq!(page.next, None);
        let mut found: Vec<_> = page.executions.iter().map(|row| row.id).collect();
        found.sort_unstable();
        let mut wanted: Vec<_> = expected.iter().map(|n: &usize| ids[*n]).collect();
        wanted.sort_unstable();
        assert_eq!(found, wanted, "{filter:?}");
    }
}

/// Pages join without a gap or a repeat although executions end between them.
pub async fn pages_have_no_gaps_while_executions_end(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let other = world.action(1, "b").await;
    let mut ids: Vec<ExecutionId> = Vec::new();
    for _ in 0..4 {
        let mut inserts = Vec::new();
        for _ in 0..4 {
            inserts.push(world.requested(&action));
            inserts.push(world.requested(&other));
        }
        ids.extend(world.insert(inserts).await);
    }
    let mut before = Vec::new();
    for id in &ids {
        before.push(world.record(*id).await);
    }
    before.sort_unstable_by_key(|row| std::cmp::Reverse((row.created, row.id)));
    let expected: Vec<_> = before.iter().map(|row| row.id).collect();

    let filter = ExecutionFilter::default();
    let (mut found, mut after): (Vec<ExecutionId>, _) = (Vec::new(), None);
    // Some end before they are listed and some after; new ones come on top meanwhile.
    let mut to_end = expected.chunks(5).rev().zip(expected.chunks(5));
    loop {
        let page = store.list_executions(&filter, after, 5).await.unwrap();
        assert!(page.executions.len() <= 5);
        found.extend(page.executions.iter().map(|row| row.id));
        after = page.next;
        if after.is_none() {
            break;
        }
        if let Some((late, early)) = to_end.next() {
            world.end(&[late[0], early[1]], Status::Succeeded).await;
            world.insert_queued(&action).await;
        }
    }
    assert_eq!(found, expected);
}

/// The order is by the time of acceptance, then by id, and full pages say whether more follows.
pub async fn the_newest_come_first(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    for _ in 0..3 {
        world
            .insert(vec![world.queued(&action), world.queued(&action)])
            .await;
    }
    let filter = ExecutionFilter {
        action_ref: Some(action.spec.action_ref.to_string()),
        ..ExecutionFilter::default()
    };
    let page = store.list_executions(&filter, None, 6).await.unwrap();
    assert_eq!(page.executions.len(), 6);
    assert_eq!(
        page.next, None,
        "a full page without a successor is the last"
    );
    let key = |row: &ExecutionRecord| (row.created, row.id);
    assert!(
        page.executions
            .windows(2)
            .all(|pair| key(&pair[0]) > key(&pair[1]))
    );
    let part = store.list_executions(&filter, None, 4).await.unwrap();
    let last = part.executions.last().unwrap();
    let next = part.next.unwrap();
    assert_eq!((next.created, next.id), (last.created, last.id));
    let rest = store.list_executions(&filter, Some(next), 4).await.unwrap();
    assert_eq!(rest.executions, page.executions[4..]);
    assert_eq!(rest.next, None);
}

/// A list has of the long parts only those that are asked for, of what waits and what has ended.
pub async fn long_parts_are_left_out_of_a_list(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    world.insert(vec![world.queued(&action)]).await;
    let ended = world.insert(vec![world.queued(&action)]).await;
    world.end(&ended, Status::Succeeded).await;
    for action_ref in [None, Some(action.spec.action_ref.to_string())] {
        let list = async |bodies| {
            let filter = ExecutionFilter {
                action_ref: action_ref.clone(),
                bodies,
                ..ExecutionFilter::default()
            };
            store.list_executions(&filter, None, 10).await.unwrap()
        };
        let whole = list(Bodies::ALL).await.executions;
        let bare = list(Bodies::NONE).await.executions;
        let only_parameters = list(Bodies {
            parameters: true,
            ..Bodies::NONE
        });
        let only_parameters = only_parameters.await.executions;
        for (n, full) in whole.iter().enumerate() {
            assert!(full.parameters.is_object(), "{full:?}");
            let stripped = ExecutionRecord {
                parameters: serde_json::Value::Null,
                result: None,
                stdout: None,
                stderr: None,
                ..full.clone()
            };
            assert_eq!(bare[n], stripped);
            let parameters = full.parameters.clone();
            assert_eq!(
                only_parameters[n],
                ExecutionRecord {
                    parameters,
                    ..stripped
                }
            );
        }
    }
}

fn of(world: &World, action: &Action, user: &str, group: Option<&str>) -> NewExecution {
    let mut submission = Submission::new(action.spec.action_ref.as_str());
    submission.requested_by = Some(user.to_owned());
    submission.group = group.map(str::to_owned);
    world.queued_with(action, submission)
}
