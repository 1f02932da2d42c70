//! Making, listing and ending keys, for the endpoints and for whoever asks the store itself.

use std::time::Duration;

use attune_api_types::{KeyList, KeyMade, KeyRequest, KeyState, KeyView, RotateRequest};
use attune_identity::{Grants, Key, KeyId, Pattern, check_name};
use attune_store::{
    Actor, KeyOutcome, KeyRecord, KeyRotation, KeyStanding, KeyStore, MAX_KEYS, NewKey,
};
use axum::http::StatusCode;
use tracing::error;

use crate::error::ApiError;

/// The longest that a key can be good for when that is said, in seconds: ten years.
const MAX_LIFETIME: u64 = 10 * 365 * 24 * 3600;
/// The longest that two keys are good beside each other, in seconds: a year.
const MAX_OVERLAP: u64 = 365 * 24 * 3600;

/// Makes a key for `who`; with `first`, only when there is none at all.
///
/// # Errors
/// What is wrong with what is asked, a conflict with another key, or a failure of the store.
pub async fn create(
    keys: &dyn KeyStore,
    asked: KeyRequest,
    who: Actor,
    first: bool,
) -> Result<KeyMade, ApiError> {
    check_name(&asked.name).map_err(|problem| ApiError::field("name", problem))?;
    let grants = Grants {
        roles: asked.roles,
        actions: asked.actions.unwrap_or_else(|| vec![Pattern::any()]),
        pools: asked.pools.unwrap_or_default(),
        impersonate: asked.impersonate,
        rates: asked.rates.unwrap_or_default(),
        max_waiting: asked.max_waiting,
    };
    grants
        .check()
        .map_err(|(field, problem)| ApiError::field(field, problem))?;
    let key = fresh()?;
    let new = NewKey {
        id: key.id().clone(),
        hash: key.hash(),
        name: asked.name,
        grants,
        lifetime: lifetime(asked.lifetime_seconds)?,
        who,
    };
    stored(keys.create_key(&new, first).await?, key.id())?;
    Ok(made(&key, new.name))
}

/// All keys, by name.
///
/// # Errors
/// When the store fails.
pub async fn list(keys: &dyn KeyStore) -> Result<KeyList, ApiError> {
    let keys = keys.list_keys().await?.into_iter().map(view).collect();
    Ok(KeyList { keys })
}

/// Makes a key in the place of `old`, for `who`.
///
/// # Errors
/// As [`create`], and when there is no such key or it is not good any more.
pub async fn rotate(
    keys: &dyn KeyStore,
    old: &KeyId,
    asked: RotateRequest,
    who: Actor,
) -> Result<KeyMade, ApiError> {
    if asked.overlap_seconds > MAX_OVERLAP {
        let words = format!("`overlap_seconds` must be from 0 to {MAX_OVERLAP}");
        return Err(ApiError::field("overlap_seconds", words));
    }
    let lifetime = lifetime(asked.lifetime_seconds)?;
    let found = keys.find_key(old).await?;
    let name = found.ok_or_else(|| unknown(old))?.name;
    let key = fresh()?;
    let rotation = KeyRotation {
        old: old.clone(),
        id: key.id().clone(),
        hash: key.hash(),
        overlap: Duration::from_secs(asked.overlap_seconds),
        lifetime,
        who,
    };
    stored(keys.rotate_key(&rotation).await?, old)?;
    Ok(made(&key, name))
}

/// Ends a key, for `who`.
///
/// # Errors
/// When there is no such key, or the store fails.
pub async fn revoke(keys: &dyn KeyStore, id: &KeyId, who: &Actor) -> Result<(), ApiError> {
    stored(keys.revoke_key(id, who).await?, id)
}

fn fresh() -> Result<Key, ApiError> {
    Key::fresh().map_err(|error| {
        error!(error.message = %error, "the system gives no random bytes");
        ApiError::internal()
    })
}

fn made(key: &Key, name: String) -> KeyMade {
    KeyMade {
        id: key.id().clone(),
        name,
        key: key.expose(),
    }
}

fn lifetime(seconds: Option<u64>) -> Result<Option<Duration>, ApiError> {
    match seconds {
        Some(seconds) if !(1..=MAX_LIFETIME).contains(&seconds) => {
            let words = format!("`lifetime_seconds` must be from 1 to {MAX_LIFETIME}");
            Err(ApiError::field("lifetime_seconds", words))
        }
        seconds => Ok(seconds.map(Duration::from_secs)),
    }
}

/// Why a change of a key was not stored, if it was not.
fn stored(outcome: KeyOutcome, id: &KeyId) -> Result<(), ApiError> {
    let conflict = |words: String| Err(ApiError::new(StatusCode::CONFLICT, "CONFLICT", words));
    match outcome {
        KeyOutcome::Stored => Ok(()),
        KeyOutcome::Taken => conflict(
            "there is a good key of this name: rotate it, revoke it, or take another name"
                .to_owned(),
        ),
        KeyOutcome::TooMany => conflict(format!(
            "there are {MAX_KEYS} keys, as many as there may be"
        )),
        KeyOutcome::Over => conflict(format!(
            "the key {id} is not good any more, so nothing takes its place; make a new one"
        )),
        KeyOutcome::Replaced => conflict(format!(
            "a good key stands in the place of {id} already: rotate that one, or revoke it first (`attune keys \
             list` shows it)"
        )),
        KeyOutcome::Unknown => Err(unknown(id)),
    }
}

fn unknown(id: &KeyId) -> ApiError {
    let words = format!("there is no key {id}");
    ApiError::new(StatusCode::NOT_FOUND, "UNKNOWN_KEY", words)
}

fn view(record: KeyRecord) -> KeyView {
    KeyView {
        state: match record.standing {
            KeyStanding::Good(_) => KeyState::Good,
            KeyStanding::Expired => KeyState::Expired,
            KeyStanding::Revoked => KeyState::Revoked,
        },
        id: record.id,
        name: record.name,
        roles: record.grants.roles,
        actions: record.grants.actions,
        pools: record.grants.pools,
        impersonate: record.grants.impersonate,
        rates: record.grants.rates,
        max_waiting: record.grants.max_waiting,
        created: record.created,
        created_by: record.created_by,
        expires: record.expires,
        revoked: record.revoked,
        revoked_by: record.revoked_by,
        last_used: record.last_used,
        last_ip: record.last_ip,
    }
}
