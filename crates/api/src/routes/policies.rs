//! `/api/v1/policies`: the documents of all actions, packs, actions and users.

mod change;

use attune_api_types::{
    ErrorBody, PolicyApplied, PolicyList, PolicyRequest, PolicyShown, PolicyVersions, words,
};
use attune_core::input::check_text;
use attune_core::{PolicyDocument, PolicyScope, PolicyTarget};
use attune_store::Actor;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};

use super::App;
use crate::answers::PageBudget;
use crate::auth::Caller;
use crate::body;
use crate::error::ApiError;
use crate::layers::no_if_match;
use crate::policies::{Asked, IfVersion, unknown};
use crate::query::{NoParams, Params};
use change::{change, progress, view};

/// How many documents one request may have.
const MAX_AT_ONCE: usize = 1_000;
/// Why a document is not read.
const TOO_MANY: &str = "too many policies are being applied; nothing was done, apply it again";

/// The scope and the target that a path names.
type Named = Result<Path<(String, String)>, PathRejection>;

fn target_of(path: Named) -> Result<PolicyTarget, ApiError> {
    let Path((scope, target)) = path.map_err(|_| ApiError::unreadable_target())?;
    let scope: PolicyScope = scope
        .parse()
        .map_err(|problem: String| ApiError::field("scope", format!("`scope`: {problem}")))?;
    Ok(PolicyTarget::of(scope, &target)?)
}

/// The documents in force, but for those of actions, which `GET /actions` shows.
#[utoipa::path(
    get, path = "/policies", tag = "policies", operation_id = "list_policies",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: 50 unless given, at most `api.max_page_size`."),
        ("after" = Option<String>, Query, description = "The `next` of the page before."),
    ),
    responses((status = 200, description = "A page; it ends early when it would be too large.", body = PolicyList))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    let mut params = Params::of(&uri)?;
    let after = params.take("after")?.as_deref().map(place).transpose()?;
    let limit = params.limit(app.options.max_page_size)? as usize;
    params.end("after, limit")?;
    let memory = app.memory.reserve(app.options.page_bytes).await?;
    let _turn = app.memory.turn().await?;
    let mut stored = app
        .ports
        .partitions
        .policies(None)
        .await?
        .unwrap_or_default();
    // However a store sorts them: the document after which a page begins may be gone by now.
    stored
        .documents
        .sort_by(|one, other| one.target.cmp(&other.target));
    let mut budget = PageBudget::new(app.options.page_bytes);
    let mut page = PolicyList {
        in_force: progress(&app, stored.version).await?,
        policies: Vec::new(),
        next: None,
    };
    let shown = stored.documents.iter();
    let shown = shown.skip_while(|it| after.as_ref().is_some_and(|after| it.target <= *after));
    let mut last = None;
    for version in shown {
        let view = view(version);
        if page.policies.len() == limit || !budget.takes(&view) {
            page.next = last;
            break;
        }
        last = Some(version.target.to_string());
        page.policies.push(view);
    }
    Ok(memory.json(&page))
}

/// The document after which a page begins, as `next` names it.
fn place(text: &str) -> Result<PolicyTarget, ApiError> {
    let (scope, name) = text.split_once(' ').unwrap_or((text, ""));
    let scope: Result<PolicyScope, String> = scope.parse();
    let target = scope.ok().map(|scope| PolicyTarget::of(scope, name));
    target.and_then(Result::ok).ok_or_else(|| {
        let words = "`after` takes the `next` of the page before, like \"pack core\"";
        ApiError::field("after", words)
    })
}

/// One document.
#[utoipa::path(
    get, path = "/policies/{scope}/{target}", tag = "policies", operation_id = "show_policy",
    params(
        ("scope" = String, Path, description = "`pack`, `action` or `user`."),
        ("target" = String, Path, description = "The pack, the action's ref or the user."),
    ),
    responses(
        (status = 200, description = "The document; its version is the `ETag`.", body = PolicyShown),
        (status = 404, description = "`UNKNOWN_POLICY`: there is none.", body = ErrorBody),
    )
)]
pub(crate) async fn show(
    State(app): State<App>,
    _none: NoParams,
    path: Named,
) -> Result<Response, ApiError> {
    shown(app, target_of(path)?).await
}

/// The document of all actions.
#[utoipa::path(
    get, path = "/policies/global", tag = "policies", operation_id = "show_global_policy",
    responses(
        (status = 200, description = "The document; its version is the `ETag`.", body = PolicyShown),
        (status = 404, description = "`UNKNOWN_POLICY`: there is none.", body = ErrorBody),
    )
)]
pub(crate) async fn show_global(
    State(app): State<App>,
    _none: NoParams,
) -> Result<Response, ApiError> {
    shown(app, PolicyTarget::Global).await
}

async fn shown(app: App, target: PolicyTarget) -> Result<Response, ApiError> {
    let mut newest = app.ports.policies.policy_versions(&target, None, 1).await?;
    let newest = newest.pop().filter(|it| it.document.is_some());
    let newest = newest.ok_or_else(|| unknown(&target))?;
    let effective = match &target {
        PolicyTarget::Action(action_ref) => {
            let action = app.ports.actions.find_action(action_ref).await?;
            let set = app.policies.read(&app.ports).await?;
            action.map(|action| json!(set.in_force(&action.spec).policy))
        }
        _ => None,
    };
    let in_force = match newest.set_version {
        Some(set_version) => Some(progress(&app, set_version).await?),
        None => None,
    };
    let shown = PolicyShown {
        in_force,
        effective,
        policy: view(&newest),
    };
    let tag = format!("\"{}\"", newest.version);
    Ok(([(header::ETAG, tag)], Json(shown)).into_response())
}

/// The versions of a document, the newest first.
#[utoipa::path(
    get, path = "/policies/{scope}/{target}/versions", tag = "policies", operation_id = "policy_versions",
    params(
        ("scope" = String, Path, description = "`pack`, `action` or `user`."),
        ("target" = String, Path, description = "The pack, the action's ref or the user."),
        ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: 50 unless given, at most `api.max_page_size`."),
        ("before" = Option<i64>, Query, description = "The `next` of the page before."),
    ),
    responses((status = 200, description = "A page; it ends early when it would be too large.", body = PolicyVersions))
)]
pub(crate) async fn versions(
    State(app): State<App>,
    path: Named,
    uri: Uri,
) -> Result<Response, ApiError> {
    versions_of(app, target_of(path)?, &uri).await
}

/// The versions of the document of all actions.
#[utoipa::path(
    get, path = "/policies/global/versions", tag = "policies", operation_id = "global_policy_versions",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: 50 unless given, at most `api.max_page_size`."),
        ("before" = Option<i64>, Query, description = "The `next` of the page before."),
    ),
    responses((status = 200, description = "A page; it ends early when it would be too large.", body = PolicyVersions))
)]
pub(crate) async fn global_versions(
    State(app): State<App>,
    uri: Uri,
) -> Result<Response, ApiError> {
    versions_of(app, PolicyTarget::Global, &uri).await
}

async fn versions_of(app: App, target: PolicyTarget, uri: &Uri) -> Result<Response, ApiError> {
    let mut params = Params::of(uri)?;
    let before: Option<i64> = params.parse("before")?;
    let limit = params.limit(app.options.max_page_size)?;
    params.end("before, limit")?;
    let memory = app.memory.reserve(app.options.page_bytes).await?;
    let _turn = app.memory.turn().await?;
    let mut page = PolicyVersions {
        versions: Vec::new(),
        next: None,
    };
    let found = app
        .ports
        .policies
        .policy_versions(&target, before, limit + 1);
    let mut budget = PageBudget::new(app.options.page_bytes);
    for version in found.await? {
        let view = view(&version);
        if page.versions.len() == limit as usize || !budget.takes(&view) {
            page.next = page.versions.last().map(|last| last.version);
            break;
        }
        page.versions.push(view);
    }
    Ok(memory.json(&page))
}

/// Applies a document.
#[utoipa::path(
    put, path = "/policies/{scope}/{target}", tag = "policies", operation_id = "apply_policy",
    request_body = words::PolicyDocument,
    params(
        ("scope" = String, Path, description = "`pack`, `action` or `user`."),
        ("target" = String, Path, description = "The pack, the action's ref or the user."),
        ("who" = Option<String>, Query, description = "Who asks; `api` unless given."),
        ("reason" = Option<String>, Query, description = "Why, for the versions and the audit log."),
        ("dry_run" = Option<bool>, Query, description = "`true`: only say whether it could be applied."),
        ("If-Match" = Option<String>, Header, description = "The version that it must have now, as the `ETag` tells it."),
    ),
    responses(
        (status = 200, description = "It is stored and in force.", body = PolicyApplied),
        (status = 202, description = "It is stored, and not in force everywhere after 5 s.", body = PolicyApplied),
        (status = 412, description = "`VERSION_MISMATCH`: it was changed.", body = ErrorBody),
    )
)]
pub(crate) async fn apply(
    State(app): State<App>,
    caller: Caller,
    path: Named,
    uri: Uri,
    request: Request,
) -> Result<Response, ApiError> {
    put(app, &caller, target_of(path)?, &uri, request).await
}

/// Applies the document of all actions.
#[utoipa::path(
    put, path = "/policies/global", tag = "policies", operation_id = "apply_global_policy",
    request_body = words::PolicyDocument,
    params(
        ("who" = Option<String>, Query, description = "Who asks; `api` unless given."),
        ("reason" = Option<String>, Query, description = "Why, for the versions and the audit log."),
        ("dry_run" = Option<bool>, Query, description = "`true`: only say whether it could be applied."),
        ("If-Match" = Option<String>, Header, description = "The version that it must have now, as the `ETag` tells it."),
    ),
    responses(
        (status = 200, description = "It is stored and in force.", body = PolicyApplied),
        (status = 202, description = "It is stored, and not in force everywhere after 5 s.", body = PolicyApplied),
        (status = 412, description = "`VERSION_MISMATCH`: it was changed.", body = ErrorBody),
    )
)]
pub(crate) async fn apply_global(
    State(app): State<App>,
    caller: Caller,
    uri: Uri,
    request: Request,
) -> Result<Response, ApiError> {
    put(app, &caller, PolicyTarget::Global, &uri, request).await
}

async fn put(
    app: App,
    caller: &Caller,
    target: PolicyTarget,
    uri: &Uri,
    request: Request,
) -> Result<Response, ApiError> {
    caller.check_policy(&target)?;
    let (params, if_version) = (asked_by(caller, uri)?, if_match(request.headers())?);
    let body = body::read(request, &app.options, &app.bodies).await?;
    let of = target.clone();
    let read = move |body: &[u8]| Ok(named(body::parse(body)?, &of)?.read()?.1);
    let (content, _) = app.read_document(body, TOO_MANY, read).await?;
    let asked = Asked {
        documents: vec![(target, Some(content))],
        is_list: false,
        if_version,
        who: params.who,
        reason: params.reason,
    };
    change(app, asked, params.dry_run).await
}

/// A document whose scope and target the path names; it may name them as well.
fn named(mut given: Map<String, Value>, target: &PolicyTarget) -> Result<PolicyDocument, ApiError> {
    let names = [
        ("scope", target.scope().as_str()),
        ("target", target.name()),
    ];
    for (field, name) in names {
        let own = given.entry(field).or_insert_with(|| name.into());
        if own != name {
            let words = format!("`{field}` is {own} and the path says \"{name}\"");
            return Err(ApiError::field(field, words));
        }
    }
    body::parse(Value::Object(given).to_string().as_bytes())
}

/// Takes a document back; an action has no policy of its own then.
#[utoipa::path(
    delete, path = "/policies/{scope}/{target}", tag = "policies", operation_id = "remove_policy",
    params(
        ("scope" = String, Path, description = "`pack`, `action` or `user`."),
        ("target" = String, Path, description = "The pack, the action's ref or the user."),
        ("who" = Option<String>, Query, description = "Who asks; `api` unless given."),
        ("reason" = Option<String>, Query, description = "Why, for the versions and the audit log."),
        ("dry_run" = Option<bool>, Query, description = "`true`: only say whether it could be taken back."),
        ("If-Match" = Option<String>, Header, description = "The version that it must have now, as the `ETag` tells it."),
    ),
    responses(
        (status = 200, description = "It is stored and in force.", body = PolicyApplied),
        (status = 202, description = "It is stored, and not in force everywhere after 5 s.", body = PolicyApplied),
        (status = 404, description = "`UNKNOWN_POLICY`: there is none.", body = ErrorBody),
        (status = 412, description = "`VERSION_MISMATCH`: it was changed.", body = ErrorBody),
    )
)]
pub(crate) async fn remove(
    State(app): State<App>,
    caller: Caller,
    path: Named,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    delete(app, &caller, target_of(path)?, &uri, &headers).await
}

/// Takes the document of all actions back.
#[utoipa::path(
    delete, path = "/policies/global", tag = "policies", operation_id = "remove_global_policy",
    params(
        ("who" = Option<String>, Query, description = "Who asks; `api` unless given."),
        ("reason" = Option<String>, Query, description = "Why, for the versions and the audit log."),
        ("dry_run" = Option<bool>, Query, description = "`true`: only say whether it could be taken back."),
        ("If-Match" = Option<String>, Header, description = "The version that it must have now, as the `ETag` tells it."),
    ),
    responses(
        (status = 200, description = "It is stored and in force.", body = PolicyApplied),
        (status = 202, description = "It is stored, and not in force everywhere after 5 s.", body = PolicyApplied),
        (status = 404, description = "`UNKNOWN_POLICY`: there is none.", body = ErrorBody),
        (status = 412, description = "`VERSION_MISMATCH`: it was changed.", body = ErrorBody),
    )
)]
pub(crate) async fn remove_global(
    State(app): State<App>,
    caller: Caller,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    delete(app, &caller, PolicyTarget::Global, &uri, &headers).await
}

async fn delete(
    app: App,
    caller: &Caller,
    target: PolicyTarget,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    caller.check_policy(&target)?;
    let params = asked_by(caller, uri)?;
    let asked = Asked {
        documents: vec![(target, None)],
        is_list: false,
        if_version: if_match(headers)?,
        who: params.who,
        reason: params.reason,
    };
    change(app, asked, params.dry_run).await
}

/// Applies several documents, all of them or none.
#[utoipa::path(
    post, path = "/policies", tag = "policies", operation_id = "apply_policies",
    request_body = PolicyRequest,
    params(("dry_run" = Option<bool>, Query, description = "`true`: only say whether they could be applied.")),
    responses(
        (status = 200, description = "They are stored and in force.", body = PolicyApplied),
        (status = 202, description = "They are stored, and not in force everywhere after 5 s.", body = PolicyApplied),
    )
)]
pub(crate) async fn apply_many(
    State(app): State<App>,
    caller: Caller,
    uri: Uri,
    request: Request,
) -> Result<Response, ApiError> {
    let mut params = Params::of(&uri)?;
    let dry_run = params.parse::<bool>("dry_run")?.unwrap_or(false);
    params.end("dry_run")?;
    no_if_match(
        request.headers(),
        "it is for the one document of a path; leave it out, or put that one by itself: `PUT \
         /api/v1/policies/{scope}/{target}`",
    )?;
    let body = body::read(request, &app.options, &app.bodies).await?;
    let read = move |body: &[u8]| several(&caller, body);
    let (asked, _) = app.read_document(body, TOO_MANY, read).await?;
    change(app, asked, dry_run).await
}

/// What a list of documents asks for.
fn several(caller: &Caller, body: &[u8]) -> Result<Asked, ApiError> {
    let given: PolicyRequest = body::parse(body)?;
    if given.documents.is_empty() || given.documents.len() > MAX_AT_ONCE {
        let words = format!(
            "`documents` has {} documents; it must be from 1 to {MAX_AT_ONCE}",
            given.documents.len()
        );
        return Err(ApiError::field("documents", words));
    }
    let mut documents: Vec<(PolicyTarget, _)> = Vec::new();
    for (number, document) in given.documents.iter().enumerate() {
        let in_its_place = |error: ApiError| error.in_document(number);
        let (target, content) = document.read().map_err(|it| in_its_place(it.into()))?;
        caller.check_policy(&target).map_err(in_its_place)?;
        if documents.iter().any(|(other, _)| *other == target) {
            let words = format!("there is another document of {target}; leave one of the two out");
            return Err(in_its_place(ApiError::field("target", words)));
        }
        documents.push((target, Some(content)));
    }
    let who = caller.who(given.who)?;
    check_reason(given.reason.as_deref())?;
    Ok(Asked {
        documents,
        is_list: true,
        if_version: None,
        who,
        reason: given.reason,
    })
}

struct AskedBy {
    who: Actor,
    reason: Option<String>,
    dry_run: bool,
}

fn asked_by(caller: &Caller, uri: &Uri) -> Result<AskedBy, ApiError> {
    let mut params = Params::of(uri)?;
    let who = caller.who(params.take("who")?)?;
    let reason = params.take("reason")?;
    let dry_run = params.parse::<bool>("dry_run")?.unwrap_or(false);
    params.end("who, reason, dry_run")?;
    check_reason(reason.as_deref())?;
    Ok(AskedBy {
        who,
        reason,
        dry_run,
    })
}

fn check_reason(reason: Option<&str>) -> Result<(), ApiError> {
    if let Some(reason) = reason {
        check_text("reason", reason)?;
    }
    Ok(())
}

/// The version that a header wants.
fn if_match(headers: &HeaderMap) -> Result<Option<IfVersion>, ApiError> {
    let mut given = headers.get_all(header::IF_MATCH).iter();
    let Some(value) = given.next() else {
        return Ok(None);
    };
    if given.next().is_some() {
        return Err(ApiError::field("If-Match", "`If-Match` is given twice"));
    }
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(Some(IfVersion::Any));
    }
    let version = text.trim_start_matches("W/").trim_matches('"').parse();
    version.map(|it| Some(IfVersion::Is(it))).map_err(|_| {
        let words = "`If-Match` takes one version as the `ETag` tells it, like \"3\", or `*`";
        ApiError::field("If-Match", words)
    })
}
