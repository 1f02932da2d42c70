//! What a change of policy documents comes to: checked against everything that is stored, and stored only
//! while that is so.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use attune_api_types::PolicyDifference;
use attune_core::policy::Content;
use attune_core::{
    ActionPolicy, ActionRef, ActionSpec, PolicySet, PolicyTarget, Reject, RequestId,
};
use attune_store::{
    Actor, Applied, DocumentChange, MAX_DOCUMENTS, MAX_SET_BYTES, PolicyChanges, PolicyOutcome,
    PolicyVersion, StoredPolicies,
};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::error::ApiError;
use crate::ports::Ports;

/// How many actions are read at once: a schema can have a mebibyte.
const ACTIONS_AT_ONCE: u32 = 64;
/// How often a change is checked anew because something else was stored meanwhile.
const TRIES: u32 = 10;

/// What the documents say, as it was read last: it is read again only where it has changed.
#[derive(Default)]
pub(crate) struct KnownPolicies(Mutex<Arc<PolicySet>>);

impl KnownPolicies {
    /// What is stored now.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) async fn read(&self, ports: &Ports) -> Result<Arc<PolicySet>, ApiError> {
        let known = self.set(|known| Arc::clone(known));
        let newer = ports.partitions.policies(Some(known.version)).await?;
        let Some(newer) = newer else {
            return Ok(known);
        };
        let newer = Arc::new(newer.set().0);
        self.set(|known| {
            // Two that read at once may come in either order.
            if known.version < newer.version {
                *known = Arc::clone(&newer);
            }
        });
        Ok(newer)
    }

    fn set<T>(&self, look: impl FnOnce(&mut Arc<PolicySet>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Checks an action with what it would inherit; the version of the set under which it is so.
pub(crate) async fn check_action(
    ports: &Ports,
    known: &KnownPolicies,
    spec: &ActionSpec,
) -> Result<i64, ApiError> {
    let set = known.read(ports).await?;
    set.check(spec)?;
    Ok(set.version)
}

/// Applies an action, if what it inherits goes together with it.
pub(crate) async fn apply_action(
    ports: &Ports,
    known: &KnownPolicies,
    spec: &ActionSpec,
    partitions: u16,
    who: &Actor,
) -> Result<Applied, ApiError> {
    for _ in 0..TRIES {
        let under = check_action(ports, known, spec).await?;
        let applied = ports
            .policies
            .apply_action_under(spec, partitions, who, under);
        if let Some(applied) = applied.await? {
            return Ok(applied);
        }
    }
    Err(too_busy())
}

/// Changes are checked one at a time: each reads the whole set and compares it with every action.
pub(crate) struct Turns(Semaphore);

impl Turns {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(1))
    }

    /// Waits until a change may be checked, until `deadline`.
    ///
    /// # Errors
    /// 503 `OVERLOADED` when it may not be by then.
    pub(crate) async fn take(&self, deadline: Instant) -> Result<SemaphorePermit<'_>, ApiError> {
        let turn = timeout_at(deadline, self.0.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| {
            let words = "other changes of policies are being checked; nothing was done, repeat it";
            ApiError::unavailable("OVERLOADED", words)
        })
    }
}

/// What somebody asks for.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// About whom, each once, and what is said from then on; nothing to take it back.
    pub(crate) documents: Vec<(PolicyTarget, Option<Content>)>,
    /// Whether they come in a list: a refusal names the one that it is about.
    pub(crate) is_list: bool,
    /// The version that the one document must have now, if that is asked.
    pub(crate) if_version: Option<IfVersion>,
    pub(crate) who: Actor,
    pub(crate) reason: Option<String>,
}

impl Asked {
    /// A refusal that is about one of the documents, with the place of its field.
    fn refusal_of(&self, target: &PolicyTarget, error: impl Into<ApiError>) -> ApiError {
        let number = self.documents.iter().position(|(it, _)| it == target);
        let error: ApiError = error.into();
        match number.filter(|_| self.is_list) {
            Some(number) => error.in_document(number),
            None => error,
        }
    }
}

/// Which version a document must have for it to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfVersion {
    /// Any: there must be one.
    Any,
    /// This.
    Is(i64),
}

/// What was stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) set_version: i64,
    pub(crate) versions: Vec<PolicyVersion>,
    /// What that changes.
    pub(crate) differences: Vec<PolicyDifference>,
    /// How many documents were so already.
    pub(crate) unchanged: usize,
}

/// A change that was checked.
struct Plan {
    changes: PolicyChanges,
    /// What it changes, in the same order.
    differences: Vec<PolicyDifference>,
    unchanged: usize,
}

/// Checks a change; the version of the set, and what would be changed.
pub(crate) async fn check(
    ports: &Ports,
    asked: &Asked,
) -> Result<(i64, Vec<PolicyDifference>), ApiError> {
    for _ in 0..TRIES {
        if let Some(plan) = plan(ports, asked).await? {
            return Ok((plan.changes.mark.set_version, plan.differences));
        }
    }
    Err(too_busy())
}

/// Stores a change, all of it or nothing; `before` is told what is about to be stored.
pub(crate) async fn store(
    ports: &Ports,
    asked: &Asked,
    mut before: impl FnMut(&PolicyChanges),
) -> Result<Stored, ApiError> {
    for _ in 0..TRIES {
        let Some(plan) = plan(ports, asked).await? else {
            continue;
        };
        let Plan {
            changes,
            differences,
            unchanged,
        } = plan;
        if changes.documents.is_empty() {
            return Ok(Stored {
                set_version: changes.mark.set_version,
                versions: Vec::new(),
                differences,
                unchanged,
            });
        }
        before(&changes);
        if let PolicyOutcome::Stored {
            set_version,
            versions,
        } = ports.policies.change_policies(&changes).await?
        {
            return Ok(Stored {
                set_version,
                versions,
                differences,
                unchanged,
            });
        }
    }
    Err(too_busy())
}

/// There is no document of a target.
pub(crate) fn unknown(target: &PolicyTarget) -> ApiError {
    let words = format!("there is no policy document of {target}");
    ApiError::new(StatusCode::NOT_FOUND, "UNKNOWN_POLICY", words)
}

fn too_busy() -> ApiError {
    let words = "actions and policies are being changed by others all the time; nothing was done, repeat it";
    ApiError::new(StatusCode::CONFLICT, "CONFLICT", words)
}

/// Checks a change against what is stored now; nothing when that changed while it was read.
async fn plan(ports: &Ports, asked: &Asked) -> Result<Option<Plan>, ApiError> {
    let mark = ports.policies.policy_mark().await?;
    let stored = ports.partitions.policies(None).await?.unwrap_or_default();
    if stored.version != mark.set_version {
        return Ok(None);
    }
    if let Some(wanted) = asked.if_version {
        check_version(ports, &stored, &asked.documents, wanted).await?;
    }
    let (mut set, _) = stored.set();
    let (mut documents, mut specs) = (Vec::new(), BTreeMap::new());
    let mut differences = Vec::new();
    for (target, content) in &asked.documents {
        let change = match (target, content) {
            (PolicyTarget::Action(action_ref), content) => {
                let changed = changed_action(ports, action_ref, content.as_ref()).await;
                let changed = changed.map_err(|error| asked.refusal_of(target, error))?;
                changed.map(|(before, spec)| {
                    let (before, after) = (document_of(&before), document_of(&spec));
                    specs.insert(action_ref.clone(), spec.clone());
                    let change = DocumentChange::Action(Box::new(spec));
                    let difference = PolicyDifference::between(target, Some(&before), Some(&after));
                    (change, difference)
                })
            }
            (_, content) => {
                let is_there = stored.find(target).is_some_and(|it| it.document.is_some());
                if content.is_none() && !is_there {
                    return Err(unknown(target));
                }
                set.put(target, content.clone());
                changed_document(&stored, target, content.as_ref())
            }
        };
        if let Some((change, difference)) = change {
            documents.push((target.clone(), change));
            differences.push(difference);
        }
    }
    check_bounds(&stored, &documents)?;
    check_actions(ports, &set, asked, &specs).await?;
    let unchanged = asked.documents.len() - documents.len();
    let changes = PolicyChanges {
        request_id: RequestId::fresh(),
        who: asked.who.clone(),
        reason: asked.reason.clone(),
        mark,
        documents,
    };
    Ok(Some(Plan {
        changes,
        differences,
        unchanged,
    }))
}

async fn check_version(
    ports: &Ports,
    stored: &StoredPolicies,
    documents: &[(PolicyTarget, Option<Content>)],
    wanted: IfVersion,
) -> Result<(), ApiError> {
    for (target, _) in documents {
        let now = match target {
            PolicyTarget::Action(_) => {
                let newest = ports.policies.policy_versions(target, None, 1).await?;
                newest.first().map(|it| it.version)
            }
            target => stored.find(target).map(|it| it.version),
        };
        let is_so = match wanted {
            IfVersion::Any => now.is_some(),
            IfVersion::Is(version) => now == Some(version),
        };
        if !is_so {
            let now = now.map_or("there is none".to_owned(), |now| {
                format!("it has version {now}")
            });
            let words = format!(
                "the policy of {target} was changed: {now}; nothing was stored, look at it and decide anew"
            );
            let status = StatusCode::PRECONDITION_FAILED;
            return Err(ApiError::new(status, "VERSION_MISMATCH", words));
        }
    }
    Ok(())
}

/// What is to be stored about a target other than an action, unless it is so already.
fn changed_document(
    stored: &StoredPolicies,
    target: &PolicyTarget,
    content: Option<&Content>,
) -> Option<(DocumentChange, PolicyDifference)> {
    let now = stored.find(target).and_then(|it| it.document.as_ref());
    let document = content.map(Content::stored);
    if now == document.as_ref() {
        return None;
    }
    let difference = PolicyDifference::between(target, now, document.as_ref());
    let change = document.map_or(DocumentChange::Removed, DocumentChange::Document);
    Some((change, difference))
}

/// What of an action a document about it says, and what else changes with that.
fn document_of(spec: &ActionSpec) -> Value {
    json!({
        "policy": spec.policy,
        "max_attempts": spec.max_attempts,
        "on_worker_lost": spec.on_worker_lost,
    })
}

/// An action as it is and with another policy, unless it is so already.
async fn changed_action(
    ports: &Ports,
    action_ref: &ActionRef,
    content: Option<&Content>,
) -> Result<Option<(ActionSpec, ActionSpec)>, ApiError> {
    let Some(action) = ports.actions.find_action(action_ref).await? else {
        let words = format!(
            "`target`: there is no action `{action_ref}`: apply it first (`attune action list` shows all)"
        );
        return Err(ApiError::field("target", words));
    };
    let policy = match content {
        Some(Content::Action(policy)) => ActionPolicy::clone(policy),
        _ => ActionPolicy::default(),
    };
    let mut spec = action.spec.clone();
    if policy.retry.is_some() || spec.policy.retry.is_some() {
        // These say what `policy.retry` said, or will say.
        (spec.max_attempts, spec.on_worker_lost) = (None, None);
    }
    spec.policy = policy;
    spec.check()?;
    let spec = spec.settled();
    Ok((spec != action.spec).then_some((action.spec, spec)))
}

/// Owners read the whole set, and keep it in memory.
fn check_bounds(
    stored: &StoredPolicies,
    changed: &[(PolicyTarget, DocumentChange)],
) -> Result<(), Reject> {
    let bytes = |document: &serde_json::Value| document.to_string().len();
    let mut sizes: BTreeMap<&PolicyTarget, usize> = BTreeMap::new();
    for version in &stored.documents {
        sizes.extend(
            version
                .document
                .as_ref()
                .map(|it| (&version.target, bytes(it))),
        );
    }
    for (target, change) in changed {
        match change {
            DocumentChange::Document(document) => {
                sizes.insert(target, bytes(document));
            }
            DocumentChange::Removed => {
                sizes.remove(target);
            }
            DocumentChange::Action(_) => {}
        }
    }
    let all: usize = sizes.values().sum();
    let problem = if sizes.len() > MAX_DOCUMENTS {
        format!(
            "there would be {} documents, and {MAX_DOCUMENTS} are allowed",
            sizes.len()
        )
    } else if all > MAX_SET_BYTES {
        format!("all documents would take {all} bytes as JSON, and {MAX_SET_BYTES} are allowed")
    } else {
        return Ok(());
    };
    let words =
        format!("{problem}; remove some first: a document of user `*` is for all without one");
    Err(Reject::field("documents", words))
}

/// Checks every action with what it would inherit.
async fn check_actions(
    ports: &Ports,
    set: &PolicySet,
    asked: &Asked,
    specs: &BTreeMap<ActionRef, ActionSpec>,
) -> Result<(), ApiError> {
    let given = |target: &PolicyTarget| asked.documents.iter().any(|(it, _)| it == target);
    let refuse = |spec: &ActionSpec| {
        let Some(conflict) = set.conflict(spec, given) else {
            return Ok(());
        };
        // The document that says it, also where it is none of those that are given.
        let own = || PolicyTarget::Action(spec.action_ref.clone());
        Err(asked.refusal_of(&conflict.from.unwrap_or_else(own), conflict.reject))
    };
    specs.values().try_for_each(refuse)?;
    let documents = asked.documents.iter();
    let defaults: Vec<_> = documents
        .filter(|(target, _)| matches!(target, PolicyTarget::Global | PolicyTarget::Pack(_)))
        .collect();
    if defaults.is_empty() {
        return Ok(());
    }
    let (mut packs, mut after) = (BTreeSet::new(), None);
    // Thousands of actions often say the same, and comparing a hundred rules with each other takes
    // milliseconds.
    let (keys, mut checked) = (RandomState::new(), HashSet::new());
    loop {
        let actions = ports.actions.list_actions(after.as_ref(), ACTIONS_AT_ONCE);
        let actions = actions.await?;
        let Some(last) = actions.last() else { break };
        after = Some(last.spec.action_ref.clone());
        for action in &actions {
            let spec = specs.get(&action.spec.action_ref).unwrap_or(&action.spec);
            packs.insert(spec.action_ref.pack().to_owned());
            let mut targets = defaults.iter().map(|(target, _)| target);
            if !targets.any(|target| target.covers(&spec.action_ref)) {
                continue;
            }
            // Others are served between two.
            tokio::task::yield_now().await;
            let says = json!([spec.action_ref.pack(), document_of(spec), spec.parameters]);
            if !checked.insert(keys.hash_one(says.to_string())) {
                continue;
            }
            refuse(spec)?;
        }
    }
    for (target, content) in defaults {
        if let PolicyTarget::Pack(pack) = target
            && content.is_some()
            && !packs.contains(pack)
        {
            let words = format!(
                "`target`: there is no pack `{pack}`: a pack is what stands before the first dot of an \
                 action's ref; apply an action of it first"
            );
            return Err(asked.refusal_of(target, Reject::field("target", words)));
        }
    }
    Ok(())
}
