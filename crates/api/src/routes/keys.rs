//! `/api/v1/keys`: the keys of clients.

use attune_api_types::{ErrorBody, KeyList, KeyMade, KeyRequest, RotateRequest};
use attune_identity::KeyId;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;

use super::{App, lost_task};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::query::NoParams;
use crate::{body, keys};

/// The key that a path names.
fn id_of(path: Result<Path<String>, PathRejection>) -> Result<KeyId, ApiError> {
    let text = path.map(|Path(text)| text).unwrap_or_default();
    text.parse()
        .map_err(|problem: String| ApiError::field("id", problem))
}

/// All keys, by name; what was revoked or has expired among them.
#[utoipa::path(
    get, path = "/keys", tag = "admin", operation_id = "list_keys",
    responses((status = 200, description = "The keys; of none of them the secret.", body = KeyList))
)]
pub(crate) async fn list(
    State(app): State<App>,
    _none: NoParams,
) -> Result<Json<KeyList>, ApiError> {
    keys::list(&*app.ports.keys).await.map(Json)
}

/// Makes a key, and tells it: once, and to nobody later.
#[utoipa::path(
    post, path = "/keys", tag = "admin", operation_id = "create_key",
    request_body = KeyRequest,
    responses(
        (status = 201, description = "It is made; audited.", body = KeyMade),
        (status = 409, description = "`CONFLICT`: there is a good key of this name; or as many keys as \
            there may be.", body = ErrorBody),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    request: Request,
) -> Result<(StatusCode, Json<KeyMade>), ApiError> {
    let body = body::read(request, &app.options, &app.bodies).await?;
    let asked: KeyRequest = body::parse(&body)?;
    let who = caller.who(None)?;
    // A client that goes away does not end it in the middle.
    let made = async move { keys::create(&*app.ports.keys, asked, who, false).await };
    let made = tokio::spawn(made).await.map_err(lost_task)??;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Makes a key for what another is for, which stays good for a while.
#[utoipa::path(
    post, path = "/keys/{id}/rotate", tag = "admin", operation_id = "rotate_key",
    request_body = RotateRequest,
    params(("id" = String, Path, description = "The key to be replaced.")),
    responses(
        (status = 201, description = "It is made; audited.", body = KeyMade),
        (status = 404, description = "`UNKNOWN_KEY`.", body = ErrorBody),
        (status = 409, description = "`CONFLICT`: the key is not good any more.", body = ErrorBody),
    )
)]
pub(crate) async fn rotate(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<(StatusCode, Json<KeyMade>), ApiError> {
    let old = id_of(path)?;
    let body = body::read(request, &app.options, &app.bodies).await?;
    let asked: RotateRequest = body::parse(&body)?;
    let who = caller.who(None)?;
    let made = async move { keys::rotate(&*app.ports.keys, &old, asked, who).await };
    let made = tokio::spawn(made).await.map_err(lost_task)??;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Ends a key. A server that has just used it takes it for five seconds more.
#[utoipa::path(
    delete, path = "/keys/{id}", tag = "admin", operation_id = "revoke_key",
    params(("id" = String, Path, description = "The key.")),
    responses(
        (status = 204, description = "It is not good any more; audited."),
        (status = 404, description = "`UNKNOWN_KEY`.", body = ErrorBody),
    )
)]
pub(crate) async fn revoke(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    let id = id_of(path)?;
    let who = caller.who(None)?;
    let revoked = async move { keys::revoke(&*app.ports.keys, &id, &who).await };
    tokio::spawn(revoked).await.map_err(lost_task)??;
    Ok(StatusCode::NO_CONTENT)
}
