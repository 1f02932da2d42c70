//! The messages of dead letters: as they are shown, and as they are put back.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use attune_bus::{Outgoing, Topic};
use attune_core::ActionRef;
use attune_core::secret::{MASK, Step, Walk, masked_text, may_have_sealed, rewrite};
use attune_messages::v1::{EnforcementCreated, Submit};
use attune_messages::{Envelope, Message as _, encode};
use serde_json::Value;

use crate::catalog::Known;
use crate::error::ApiError;
use crate::routes::App;

/// Of so many actions it is asked what is secret, at most; the parameters of others are not shown.
const MAX_ACTIONS: usize = 64;
/// The member that has what may be secret.
const PARAMETERS: &str = "parameters";

/// Opens what is kept of a message, if it was sealed.
///
/// # Errors
/// 422 when its key is not here.
pub(crate) fn open(app: &App, body: Vec<u8>) -> Result<Vec<u8>, ApiError> {
    let opened = app.options.secrets.open_message(body);
    opened.map_err(|error| ApiError::field("id", error.to_string()))
}

/// A message as it is shown: without what is secret in the parameters of submissions, and without all of them where
/// nobody knows what is.
///
/// # Errors
/// When it cannot be asked what is secret.
pub(crate) async fn shown(app: &App, body: Vec<u8>) -> Result<String, ApiError> {
    let body = match app.options.secrets.open_message(body) {
        Ok(body) => String::from_utf8_lossy(&body).into_owned(),
        Err(error) => return Ok(format!("{MASK} ({error})")),
    };
    let submissions = match Envelope::parse(body.as_bytes(), usize::MAX) {
        Ok(envelope) => {
            envelope.message_type == Submit::TYPE
                || envelope.message_type == EnforcementCreated::TYPE
        }
        Err(_) => return Ok(without_rest(body)),
    };
    if !submissions {
        return Ok(masked_text(&body, None));
    }
    let actions = actions(&body);
    let mut known: HashMap<&str, Option<Arc<Known>>> = HashMap::new();
    for action_ref in actions.values() {
        if known.len() == MAX_ACTIONS {
            break;
        }
        if known.contains_key(action_ref.as_str()) {
            continue;
        }
        let found = match action_ref.parse::<ActionRef>() {
            Ok(action_ref) => app.catalog.find(&action_ref, app.check_deadline()).await?,
            Err(_) => None,
        };
        known.insert(action_ref, found);
    }
    let mut hide = Hide {
        actions: &actions,
        known: &known,
    };
    let Ok(hidden) = rewrite(&body, &mut hide, (), Vec::new());
    Ok(hidden.unwrap_or(body))
}

/// What cannot be read may be the beginning of anything.
fn without_rest(mut text: String) -> String {
    if let Some(at) = text.find(PARAMETERS) {
        text.truncate(at + PARAMETERS.len());
        text.push_str(MASK);
    }
    text
}

/// The actions of the submissions in a message, by the places of the submissions.
fn actions(body: &str) -> HashMap<String, String> {
    let message: Value = serde_json::from_str(body).unwrap_or_default();
    let payload = &message["payload"];
    let items = match payload.as_array() {
        Some(items) => items.iter().enumerate().collect(),
        None => vec![(usize::MAX, payload)],
    };
    let mut found = HashMap::new();
    for (index, item) in items {
        let mut place = "payload".to_owned();
        if index != usize::MAX {
            place.push_str(&format!("/{index}"));
        }
        let submission = item.get("submission");
        if submission.is_some() {
            place.push_str("/submission");
        }
        let action_ref = submission.unwrap_or(item).get("action_ref");
        if let Some(action_ref) = action_ref.and_then(Value::as_str) {
            found.insert(place, action_ref.to_owned());
        }
    }
    found
}

/// Hides what is secret in all that is called parameters: of a submission by its action, of anything else all.
struct Hide<'k> {
    actions: &'k HashMap<String, String>,
    known: &'k HashMap<&'k str, Option<Arc<Known>>>,
}

impl Walk for Hide<'_> {
    type At = ();
    type Error = Infallible;

    fn value(&mut self, (): &(), path: &[String], json: &str) -> Result<Step, Infallible> {
        let Some((PARAMETERS, around)) = path.split_last().map(|(name, of)| (name.as_str(), of))
        else {
            return Ok(Step::Descend);
        };
        let action = self.actions.get(&around.join("/"));
        let known = action.and_then(|action| self.known.get(action.as_str())?.as_ref());
        Ok(Step::Replace(match known {
            Some(known) => masked_text(json, known.marks()),
            None => format!("\"{MASK}\""),
        }))
    }

    fn member(&mut self, (): &(), _key: &str) {}

    fn item(&mut self, (): &(), _index: usize) {}
}

/// A message that goes back as a rule firing, whose sealed values nobody would take from outside: they are opened,
/// and sealed anew where it is accepted.
///
/// # Errors
/// 422 when one of them cannot be.
pub(crate) fn unsealed(app: &App, mut message: Outgoing) -> Result<Outgoing, ApiError> {
    let body = String::from_utf8_lossy(&message.body);
    if message.topic != Topic::Enforcements || !may_have_sealed(&body) {
        return Ok(message);
    }
    let Ok(envelope) = Envelope::parse(&message.body, usize::MAX) else {
        return Ok(message);
    };
    let Ok(mut items) = envelope.items::<EnforcementCreated>() else {
        return Ok(message);
    };
    for EnforcementCreated(submission) in &mut items {
        let keys = &app.options.secrets;
        let opened = keys.open(&submission.action_ref, &submission.parameters);
        if let Some(opened) = opened.map_err(|error| ApiError::field("id", error.to_string()))? {
            submission.parameters = opened.parameters;
        }
    }
    message.body = encode(envelope.message_id, envelope.timestamp, &items).into();
    Ok(message)
}
