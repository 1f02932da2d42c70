//! Changing policy documents, and telling the owners.

use std::time::Duration;

use attune_api_types::{InForce, PolicyApplied, PolicyProgress, PolicyView};
use attune_core::{ActionRef, PartitionId, PolicyDocument, PolicyTarget};
use attune_record::{PolicyChange, Record, now_ns};
use attune_store::{DocumentChange, PolicyChanges, PolicyVersion};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;
use uuid::Uuid;

use crate::error::ApiError;
use crate::policies::{self, Asked, Stored};
use crate::routes::actions::{record, why_pending};
use crate::routes::{App, lost_task};

/// How long it is waited for a change to be in force everywhere.
const PATIENCE: Duration = Duration::from_secs(5);
/// The owners of how many actions are told at once that these have changed.
const TOLD_AT_ONCE: usize = 16;

pub(super) async fn change(app: App, asked: Asked, dry_run: bool) -> Result<Response, ApiError> {
    if dry_run {
        let turn = app.policy_turns.take(app.check_deadline()).await?;
        let (set_version, differences) = policies::check(&app.ports, &asked).await?;
        drop(turn);
        let answer = PolicyApplied {
            changed: Vec::new(),
            others: differences.len(),
            differences,
            applied: InForce::Pending,
            in_force: progress(&app, set_version).await?,
            pending_reason: Some("nothing was stored: it was only checked".to_owned()),
        };
        return Ok(Json(answer).into_response());
    }
    // Stored and told, or neither: a client that goes away in between must not leave partitions that go by
    // an older set.
    let applied = tokio::spawn(store_and_tell(app, asked));
    let applied = applied.await.map_err(lost_task)??;
    let status = match applied.applied {
        InForce::Now => StatusCode::OK,
        InForce::Pending => StatusCode::ACCEPTED,
    };
    Ok((status, Json(applied)).into_response())
}

async fn store_and_tell(app: App, asked: Asked) -> Result<PolicyApplied, ApiError> {
    let policy_id = Uuid::new_v4();
    let mut applies = Vec::new();
    let before = |changes: &PolicyChanges| applies = about_to_store(&app, policy_id, changes);
    let turn = app.policy_turns.take(app.check_deadline()).await?;
    let stored = policies::store(&app.ports, &asked, before).await?;
    drop(turn);
    let mut pending_reason = tell(&app, &asked, &stored).await;
    // It is stored whatever comes from here on, and an answer that says otherwise would be wrong.
    let in_force = match progress(&app, stored.set_version).await {
        Ok(in_force) => in_force,
        Err(error) => {
            let words = format!(
                "in how many partitions it is in force cannot be read: {}",
                error.detail.message
            );
            pending_reason.get_or_insert(words);
            PolicyProgress {
                set_version: stored.set_version,
                in_force_in: 0,
                partitions: app.options.partitions,
            }
        }
    };
    let is_everywhere = in_force.in_force_in >= in_force.partitions;
    // Partitions that go by it already need not be told, whether or not they can be.
    let nothing_new = is_everywhere && stored.versions.is_empty();
    pending_reason.take_if(|_| nothing_new);
    let is_in_force = pending_reason.is_none() && is_everywhere;
    record(&app, || {
        Record::Policies(PolicyChange::Told {
            policy_id,
            set_version: stored.set_version,
            in_force: is_in_force,
            t_ns: now_ns(),
        })
    });
    for (apply_id, action_ref) in applies {
        // Whoever submits an action that is not at hand asks the store again.
        let action = app.ports.actions.find_action(&action_ref).await;
        if let Ok(Some(action)) = action {
            record(&app, || Record::ApplyOk {
                apply_id,
                action_id: action.id,
                in_force: is_in_force,
                t_ns: now_ns(),
            });
            let learnt = app.catalog.learn(action, app.check_deadline()).await;
            if let Err(error) = learnt {
                warn!(action.r#ref = %action_ref, error.message = %error.detail.message, "a changed action is not at hand yet");
            }
        }
    }
    let pending_reason = pending_reason.or_else(|| {
        let words = format!(
            "{} of {} partitions do not go by it yet",
            in_force.partitions - in_force.in_force_in.min(in_force.partitions),
            in_force.partitions
        );
        (!is_in_force).then_some(words)
    });
    if let Some(reason) = &pending_reason {
        warn!(policy.set_version = stored.set_version, error.message = %reason, "policies are not in force everywhere yet");
    }
    Ok(PolicyApplied {
        changed: stored.versions.iter().map(view).collect(),
        differences: stored.differences,
        others: stored.unchanged,
        applied: match is_in_force {
            true => InForce::Now,
            false => InForce::Pending,
        },
        in_force,
        pending_reason,
    })
}

/// Records what is about to be stored, for the checker of histories; the actions that will be changed.
fn about_to_store(app: &App, policy_id: Uuid, changes: &PolicyChanges) -> Vec<(Uuid, ActionRef)> {
    record(app, || {
        let targets = changes.documents.iter();
        Record::Policies(PolicyChange::Asked {
            policy_id,
            targets: targets.map(|(target, _)| target.to_string()).collect(),
            says: changes.documents.iter().map(|(_, it)| said(it)).collect(),
            t_ns: now_ns(),
        })
    });
    let mut applies = Vec::new();
    for (_, change) in &changes.documents {
        if let DocumentChange::Action(spec) = change {
            let apply_id = Uuid::new_v4();
            record(app, || Record::ApplyInvoke {
                apply_id,
                action_ref: spec.action_ref.to_string(),
                limit: spec.policy.concurrency.limit,
                order: spec.policy.order(),
                sets_priorities: spec.policy.priority.sets_any(),
                inherits_length: spec.policy.queue.max_length.is_none(),
                t_ns: now_ns(),
            });
            applies.push((apply_id, spec.action_ref.clone()));
        }
    }
    applies
}

/// What a change says of its target from then on.
fn said(change: &DocumentChange) -> Option<Value> {
    match change {
        DocumentChange::Document(document) => Some(document.clone()),
        DocumentChange::Action(spec) => Some(json!(spec.policy)),
        DocumentChange::Removed => None,
    }
}

/// Tells all owners, and those of the actions that were changed; why some do not go by it yet. Also when
/// nothing changed: an owner may have missed the change before.
async fn tell(app: &App, asked: &Asked, stored: &Stored) -> Option<String> {
    let patience = app.options.submit_timeout.min(PATIENCE);
    let until = Instant::now() + patience;
    let partitions: Vec<PartitionId> = (0..app.options.partitions).map(PartitionId).collect();
    let commands = &app.ports.commands;
    let told = commands.policies_changed(stored.set_version, &partitions, patience);
    // All within the same time: a thousand actions of an owner that is gone must not take a thousand times
    // as long as one.
    let mut actions: Vec<ActionRef> = Vec::new();
    for (target, _) in &asked.documents {
        if let PolicyTarget::Action(action_ref) = target {
            actions.push(action_ref.clone());
        }
    }
    let actions = stream::iter(actions).map(|action_ref| async move {
        let left = until.saturating_duration_since(Instant::now());
        let told = commands.action_changed(action_ref.as_str(), left).await;
        told.err()
            .map(|error| format!("{action_ref}: {}", why_pending(error)))
    });
    let actions = actions.buffered(TOLD_AT_ONCE).collect::<Vec<_>>();
    let (told, actions) = tokio::join!(told, actions);
    let failed: Vec<_> = told.into_iter().filter_map(Result::err).collect();
    let mut reasons = Vec::new();
    let many = failed.len();
    if let Some(error) = failed.into_iter().next() {
        let why = why_pending(error);
        let all = partitions.len();
        reasons.push(format!(
            "{many} of {all} partitions have not said that they go by it: {why}"
        ));
    }
    reasons.extend(actions.into_iter().flatten());
    reasons.into_iter().next()
}

/// In how many partitions a version is in force.
pub(super) async fn progress(app: &App, set_version: i64) -> Result<PolicyProgress, ApiError> {
    let partitions = app.options.partitions;
    let in_force_in = match set_version {
        0 => partitions,
        _ => {
            let rows = app.ports.policies.policy_progress().await?;
            let there = rows
                .iter()
                .filter(|(id, version)| id.0 < partitions && *version >= set_version);
            u16::try_from(there.count()).unwrap_or(partitions)
        }
    };
    Ok(PolicyProgress {
        set_version,
        in_force_in,
        partitions,
    })
}

pub(super) fn view(version: &PolicyVersion) -> PolicyView {
    let (target, document) = (&version.target, version.document.clone());
    PolicyView {
        scope: target.scope().as_str().to_owned(),
        target: Some(target.name().to_owned()).filter(|name| !name.is_empty()),
        version: version.version,
        set_version: version.set_version,
        document: document.map(|it| PolicyDocument::from_stored(target, it)),
        who: version.who.clone(),
        at: version.at,
        reason: version.reason.clone(),
    }
}
