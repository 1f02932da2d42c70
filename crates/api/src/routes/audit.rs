//! `/api/v1/audit-log`: what was done by hand, and whether that is still what was written.

use attune_api_types::{AuditCheck, AuditEntry, AuditList};
use attune_store::check_chain;
use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;

use super::App;
use crate::answers::PageBudget;
use crate::error::ApiError;
use crate::query::Params;

/// What an entry is thought to need, in bytes, as long as its page is not read.
const ROW_BYTES: usize = 1024;

/// What was done by hand and what was found wrong, the newest first, in pages.
#[utoipa::path(
    get, path = "/audit-log", tag = "operations", operation_id = "list_audit_log",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: 50 unless given, at most `api.max_page_size`."),
        ("before" = Option<i64>, Query, description = "The `next` of the page before."),
    ),
    responses((status = 200, description = "A page, the newest first.", body = AuditList))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    let mut params = Params::of(&uri)?;
    let before: Option<i64> = params.parse("before")?;
    let limit = params.limit(app.options.max_page_size)?;
    params.end("before, limit")?;
    let memory = app.memory.reserve(limit as usize * ROW_BYTES).await?;
    let mut found = app.ports.audit.audit_log(before, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let mut budget = PageBudget::new(app.options.page_bytes);
    let all = found.len();
    let entries: Vec<AuditEntry> = found
        .into_iter()
        .map(entry)
        .take_while(|entry| budget.takes(entry))
        .collect();
    let more = more || entries.len() < all;
    let next = entries.last().filter(|_| more).map(|entry| entry.id);
    Ok(memory.json(&AuditList { entries, next }))
}

fn entry(found: attune_store::AuditEntry) -> AuditEntry {
    AuditEntry {
        id: found.id,
        at: found.at,
        who: found.who,
        what: found.what,
        target: found.target,
        reason: found.reason,
        before: found.before,
        after: found.after,
        request_id: found.request_id,
        actor_kind: found.origin.actor_kind,
        key_id: found.origin.key_id,
        source_ip: found.origin.source_ip,
        via: found.origin.via,
    }
}

/// Walks the chain of the audit log: whether each entry is as it was written, and none is missing.
///
/// Each entry has a hash that is made from it and the hash of the entry before. Note `head_hash` somewhere else
/// now and then: a later look with `noted` says whether that is still a part of the chain. Whoever may change
/// the tables can write another chain, but not one with a hash that was noted.
#[utoipa::path(
    get, path = "/audit-log/check", tag = "operations", operation_id = "check_audit_log",
    params(("noted" = Option<String>, Query, description = "A `head_hash` of before, that must be in the chain.")),
    responses((status = 200, description = "What was found.", body = AuditCheck))
)]
pub(crate) async fn check(State(app): State<App>, uri: Uri) -> Result<Json<AuditCheck>, ApiError> {
    let mut params = Params::of(&uri)?;
    let noted = params
        .take("noted")?
        .map(|text| hash_of(&text))
        .transpose()?;
    params.end("noted")?;
    let _memory = app.memory.reserve(CHECK_BYTES).await?;
    let _turn = app.memory.turn().await?;
    let found = check_chain(&*app.ports.audit, noted.as_ref()).await?;
    let problem = match (found.broken, found.unchained) {
        (Some((_, words)), _) => Some(words.to_owned()),
        (None, 1..) => Some(format!(
            "{} entries are no part of the chain",
            found.unchained
        )),
        _ if noted.is_some() && !found.found => {
            Some("the hash that was noted is not in the chain".to_owned())
        }
        _ => None,
    };
    Ok(Json(AuditCheck {
        whole: problem.is_none(),
        problem,
        broken_at: found.broken.map(|(no, _)| no),
        entries: found.entries,
        first: found.first,
        head: found.head.map(|(no, _)| no),
        head_hash: found.head.map(|(_, hash)| digits(&hash)),
    }))
}

/// What a page of the chain is thought to need, in bytes.
const CHECK_BYTES: usize = 4 << 20;

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash_of(text: &str) -> Result<[u8; 32], ApiError> {
    let wrong = || {
        ApiError::field(
            "noted",
            "`noted` has 64 hexadecimal digits, as `head_hash` has",
        )
    };
    if text.len() != 64 || !text.is_ascii() {
        return Err(wrong());
    }
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(hash)
}
