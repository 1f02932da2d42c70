//! Changing policy documents, and telling the owners.

use std::time::Duration;

use attune_api_types::{InForce, PolicyApplied, PolicyProgress, PolicyView};
use attune_core::{ActionRef, PartitionId, PolicyDocument, PolicyTarget};
use attune_record::{PolicyChange, Record, now_ns};
use attune_store::{DocumentChange, PolicyChanges, PolicyVersion};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use tracing::warn;
use uuid::Uuid;

use crate::error::ApiError;
use crate::policies::{self, Asked, Stored};
use crate::routes::actions::{record, why_pending};
use crate::routes::{App, lost_task};

/// How long it is waited for a change to be in force everywhere.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn change(app: App, asked: Asked, dry_run: bool) -> Result<Response, ApiError> {
    if dry_run {
        let (set_version, others) = policies::check(&app.ports, &asked).await?;
        let answer = PolicyApplied {
            changed: Vec::new(),
            others,
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
    let stored = policies::store(&app.ports, &asked, before).await?;
    let pending_reason = tell(&app, &asked, &stored).await;
    let in_force = progress(&app, stored.set_version).await?;
    let is_in_force = pending_reason.is_none() && in_force.in_force_in >= in_force.partitions;
    record(&app, || {
        Record::Policies(PolicyChange::Told {
            policy_id,
            set_version: stored.set_version,
            in_force: is_in_force,
            t_ns: now_ns(),
        })
    });
    for (apply_id, action_ref) in applies {
        let action = app.ports.actions.find_action(&action_ref).await?;
        if let Some(action) = action {
            record(&app, || Record::ApplyOk {
                apply_id,
                action_id: action.id,
                in_force: is_in_force,
                t_ns: now_ns(),
            });
            let learnt = app.catalog.learn(action, app.check_deadline()).await;
            if let Err(error) = learnt {
                // Whoever submits it asks the store again.
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
                t_ns: now_ns(),
            });
            applies.push((apply_id, spec.action_ref.clone()));
        }
    }
    applies
}

/// Tells all owners, and those of the actions that were changed; why some do not go by it yet. Also when
/// nothing changed: an owner may have missed the change before.
async fn tell(app: &App, asked: &Asked, stored: &Stored) -> Option<String> {
    let deadline = app.options.submit_timeout.min(PATIENCE);
    let partitions: Vec<PartitionId> = (0..app.options.partitions).map(PartitionId).collect();
    let commands = &app.ports.commands;
    let told = commands.policies_changed(stored.set_version, &partitions, deadline);
    let failed: Vec<_> = told.await.into_iter().filter_map(Result::err).collect();
    let mut reasons = Vec::new();
    let many = failed.len();
    if let Some(error) = failed.into_iter().next() {
        let why = why_pending(error);
        let all = partitions.len();
        reasons.push(format!(
            "{many} of {all} partitions have not said that they go by it: {why}"
        ));
    }
    for (target, _) in &asked.documents {
        if let PolicyTarget::Action(action_ref) = target {
            let told = commands.action_changed(action_ref.as_str(), deadline).await;
            reasons.extend(
                told.err()
                    .map(|error| format!("{action_ref}: {}", why_pending(error))),
            );
        }
    }
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
