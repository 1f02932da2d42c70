//! `GET /api/v1/events`: what happens, as it happens.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use attune_api_types::ErrorBody;
use attune_core::ActionRef;
use attune_core::policy::EventKind;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::events::Told;
use crate::query::Params;

/// How many may listen at once.
pub(crate) const MAX_LISTENERS: usize = 64;
/// After so long without an event for it a comment is sent, so that a connection that is gone is noticed.
const QUIET: Duration = Duration::from_secs(15);

/// Somebody who listens.
struct Listener {
    events: Receiver<Arc<Told>>,
    action: Option<ActionRef>,
    kinds: Vec<EventKind>,
    /// Its place among all, and among those of its key.
    _permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
}

/// What happens to actions whose policies ask for it (`policy.events`), as server-sent events.
///
/// Each has the kind as its name (`event:`) and as `data:` a JSON object: `kind`, `at`, `action_id`,
/// `action_ref`, and what belongs to the kind. They are told once, from when the answer begins, and some may
/// be lost: what counts is what the other routes show. Who reads too slowly loses the oldest, and is told how
/// many by `lost` with `{"count": 7}`.
#[utoipa::path(
    get, path = "/events", tag = "executions", operation_id = "listen",
    params(
        ("action" = Option<String>, Query, description = "Only those of this action."),
        ("kind" = Option<String>, Query, description = "Only these, as in `finished,retried`."),
    ),
    responses(
        (status = 200, description = "Events, until one of both ends it.",
            content_type = "text/event-stream", body = String),
        (status = 404, description = "`UNKNOWN_ACTION`: there is no such action.", body = ErrorBody),
        (status = 503, description = "`OVERLOADED`: as many listen as may. `NO_EVENTS`: the bus cannot \
            be reached.", body = ErrorBody),
    )
)]
pub(crate) async fn listen(
    State(app): State<App>,
    caller: Caller,
    uri: Uri,
) -> Result<Response, ApiError> {
    let mut params = Params::of(&uri)?;
    let action: Option<ActionRef> = params.parse("action")?;
    let kinds: Vec<EventKind> = params.list("kind")?;
    params.end("action, kind")?;
    if let Some(action_ref) = &action {
        let known = app.ports.actions.find_action(action_ref).await?;
        known.ok_or_else(|| ApiError::no_action(action_ref.as_str()))?;
    }
    let of_key = caller.listens()?;
    let permit = Arc::clone(&app.listeners).try_acquire_owned();
    let permit = permit.map_err(|_| {
        let words = format!("{MAX_LISTENERS} listen to events already, as many as may");
        ApiError::unavailable("OVERLOADED", words)
    })?;
    let events = app.events.listen().await.ok_or_else(|| {
        let words = "the bus cannot be reached, so no events come; listen again later";
        ApiError::unavailable("NO_EVENTS", words)
    })?;
    let listener = Listener {
        events,
        action,
        kinds,
        _permits: (permit, of_key),
    };
    let begin = (listener, caller, Instant::now());
    let lines = stream::unfold(begin, |(mut listener, caller, mut looked_at)| async move {
        // Who is let in is looked at once; this goes on after a key was revoked.
        if looked_at.elapsed() >= QUIET {
            if !caller.is_good_still().await {
                return None;
            }
            looked_at = Instant::now();
        }
        let line = listener.next().await?;
        let rest = (listener, caller, looked_at);
        Some((Ok::<_, Infallible>(Bytes::from(line)), rest))
    });
    let content_type = (header::CONTENT_TYPE, "text/event-stream");
    Ok(([content_type], Body::from_stream(lines)).into_response())
}

pub(crate) fn listeners() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_LISTENERS))
}

impl Listener {
    /// What is sent next; `None` when nothing will come any more.
    async fn next(&mut self) -> Option<String> {
        // What is told to others alone does not count.
        let quiet = Instant::now() + QUIET;
        loop {
            match timeout_at(quiet, self.events.recv()).await {
                Err(_) => return Some(":\n\n".to_owned()),
                Ok(Ok(told)) if self.wants(&told) => {
                    return Some(format!("event: {}\ndata: {}\n\n", told.kind, told.json));
                }
                Ok(Ok(_)) => {}
                Ok(Err(RecvError::Lagged(count))) => {
                    return Some(format!("event: lost\ndata: {{\"count\":{count}}}\n\n"));
                }
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }

    fn wants(&self, told: &Told) -> bool {
        let action = self.action.as_ref();
        let is_its = action.is_none_or(|action| action.as_str() == told.action_ref);
        is_its && (self.kinds.is_empty() || self.kinds.contains(&told.kind))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast;

    use super::*;

    fn told(kind: EventKind, action_ref: &str) -> Arc<Told> {
        Arc::new(Told {
            kind,
            action_ref: action_ref.to_owned(),
            json: format!("{{\"kind\":\"{kind}\"}}"),
        })
    }

    async fn next(listener: &mut Listener) -> Option<String> {
        listener.next().await
    }

    #[tokio::test(start_paused = true)]
    async fn who_listens_hears_its_own_and_what_it_has_missed() {
        let (events, receiver) = broadcast::channel(2);
        let mut listener = Listener {
            events: receiver,
            action: Some("a.b".parse().unwrap()),
            kinds: vec![EventKind::Finished],
            _permits: (listeners().try_acquire_owned().unwrap(), None),
        };
        for (kind, action_ref) in [(EventKind::Finished, "a.c"), (EventKind::Finished, "a.b")] {
            events.send(told(kind, action_ref)).unwrap();
        }
        let heard = "event: finished\ndata: {\"kind\":\"finished\"}\n\n";
        assert_eq!(next(&mut listener).await.as_deref(), Some(heard));
        // Five come, and there is room for two.
        for _ in 0..5 {
            events.send(told(EventKind::Finished, "a.b")).unwrap();
        }
        let lost = "event: lost\ndata: {\"count\":3}\n\n";
        for expected in [lost, heard, heard] {
            assert_eq!(next(&mut listener).await.as_deref(), Some(expected));
        }
        // What others hear does not put off the sign of life.
        let began = Instant::now();
        let others = async {
            for _ in 0..20 {
                tokio::time::advance(Duration::from_secs(1)).await;
                events.send(told(EventKind::Started, "a.b")).unwrap();
                tokio::task::yield_now().await;
            }
            events
        };
        let (sign, events) = tokio::join!(next(&mut listener), others);
        assert_eq!(sign.as_deref(), Some(":\n\n"));
        assert!(began.elapsed() >= QUIET);
        drop(events);
        while let Some(line) = next(&mut listener).await {
            assert!(line.starts_with("event: lost"), "{line}");
        }
    }
}
