//! Of which trace an execution is a part stays with it.

use std::sync::Arc;

use attune_core::{ExecutionId, Outcome, Status, Submission, TraceParent};

use super::support::{World, grant_to, put_back};
use attune_store::{Batch, GrantedBody, NewExecution, PutBack, Store};

fn trace(number: u64) -> Option<TraceParent> {
    TraceParent::new([7; 16], number.to_be_bytes(), number.is_multiple_of(2))
}

fn traces(mut bodies: Vec<GrantedBody>) -> Vec<(ExecutionId, Option<TraceParent>)> {
    bodies.sort_by_key(|body| body.id);
    bodies
        .into_iter()
        .map(|body| (body.id, body.trace))
        .collect()
}

/// Each comes with the body of its execution: with the grant, with that of a batch that is written again, to
/// whoever loads it later, and with each next attempt. One that has none has none, beside others that have.
pub async fn a_trace_comes_with_the_body(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let given = [trace(1), None, trace(2), trace(3)];
    let new = |trace| {
        let submission = Submission {
            trace,
            ..Submission::new(action.spec.action_ref.as_str())
        };
        world.queued_with(&action, submission)
    };
    let mut inserts: Vec<NewExecution> = given.into_iter().map(new).collect();
    // In another order than they are stored.
    inserts.swap(0, 3);
    let mut expected: Vec<_> = inserts
        .iter()
        .map(|new| (new.id, new.submission.trace))
        .collect();
    expected.sort_by_key(|(id, _)| *id);
    let ids = world.insert(inserts).await;
    let worker = world.worker("w").await;
    for (id, trace) in &expected {
        assert_eq!(world.record(*id).await.trace, *trace);
    }
    let grants = Batch {
        updates: ids.iter().map(|id| grant_to(*id, 1, worker)).collect(),
        ..world.batch()
    };
    assert_eq!(traces(world.commit(&grants).await.granted), expected);
    assert_eq!(traces(world.commit(&grants).await.granted), expected);
    let loaded = store.load_bodies(&ids).await.unwrap();
    assert_eq!(traces(loaded), expected);

    let back = PutBack {
        not_before: None,
        unbegun: 1,
        last_error: None,
        keeps_slot: false,
    };
    let put_back = ids
        .iter()
        .map(|id| put_back(*id, 1, back.clone()))
        .collect();
    world.update(put_back).await;
    let again = ids.iter().map(|id| grant_to(*id, 2, worker)).collect();
    assert_eq!(traces(world.update(again).await.granted), expected);

    world.end(&ids, Status::Succeeded).await;
    for (id, trace) in expected {
        assert_eq!(world.record(id).await.trace, trace);
    }
}

/// What ends in the round that accepts it has its trace in the history.
pub async fn an_instant_end_keeps_its_trace(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    for trace in [trace(1), None] {
        let submission = Submission {
            trace,
            ..Submission::new(action.spec.action_ref.as_str())
        };
        let new = world.queued_with(&action, submission);
        let id = new.id;
        let outcome = Outcome::of(Status::Cancelled, Some("at once".to_owned()));
        let batch = Batch {
            instant: vec![(new, Arc::new(outcome))],
            ..world.batch()
        };
        world.commit(&batch).await;
        world.commit(&batch).await;
        let record = world.record(id).await;
        assert_eq!(
            (record.trace, record.error.as_deref()),
            (trace, Some("at once"))
        );
    }
}
