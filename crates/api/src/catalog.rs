//! The server's own view of the actions, at most a second or so old.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use attune_core::{Action, ActionRef, Reject, Submission};
use attune_store::{ActionStore, StoreError};
use serde_json::Value;
use tracing::error;

use crate::schema::ParameterSchema;

/// How long an action is used without asking the store again. A change made through another
/// server is seen after so long.
const FRESH: Duration = Duration::from_secs(1);
/// How many actions are kept; beyond it those that are not fresh are forgotten.
const MAX_ENTRIES: usize = 10_000;

/// An action with its compiled schema.
pub(crate) struct Known {
    /// The action.
    pub(crate) action: Action,
    /// `None` takes any parameters; an error is what is wrong with the stored schema.
    schema: Option<Result<ParameterSchema, Reject>>,
}

impl Known {
    fn new(action: Action) -> Self {
        let schema = action
            .spec
            .parameters
            .as_ref()
            .map(ParameterSchema::compile);
        if let Some(Err(reject)) = &schema {
            error!(
                action.r#ref = %action.spec.action_ref,
                error.message = %reject,
                "a stored action has a broken parameter schema; apply it again"
            );
        }
        Self { action, schema }
    }

    /// Checks the parameters of a submission against the schema.
    ///
    /// # Errors
    /// A [`Reject`] that names the field.
    pub(crate) fn check(&self, submission: &Submission) -> Result<(), Reject> {
        let schema = match &self.schema {
            None => return Ok(()),
            Some(Ok(schema)) => schema,
            Some(Err(reject)) => {
                return Err(Reject::field(
                    "action_ref",
                    format!(
                        "the stored schema of `{}` is broken: {reject}",
                        submission.action_ref
                    ),
                ));
            }
        };
        let parameters: Value = serde_json::from_str(submission.parameters.get())
            .map_err(|error| Reject::field("parameters", format!("`parameters`: {error}")))?;
        schema.check(&parameters)
    }
}

/// What the cache says to someone who asks for an action.
enum Look {
    /// Use this.
    Use(Arc<Known>),
    /// Ask the store; others use what is there meanwhile.
    Ask,
}

struct Entry {
    known: Arc<Known>,
    /// When it is asked for again. Moved on by whoever goes to ask, so that one asks and not
    /// everyone; if that one fails, the next does after another [`FRESH`].
    ask_after: Instant,
}

#[derive(Default)]
struct Cache {
    entries: HashMap<ActionRef, Entry>,
}

impl Cache {
    fn look(&mut self, action_ref: &ActionRef, now: Instant) -> Look {
        match self.entries.get_mut(action_ref) {
            Some(entry) if now < entry.ask_after => Look::Use(Arc::clone(&entry.known)),
            Some(entry) => {
                entry.ask_after = now + FRESH;
                Look::Ask
            }
            None => Look::Ask,
        }
    }

    /// Keeps `known` unless something newer is there already: an answer of the store can be
    /// overtaken by a change.
    fn keep(&mut self, known: Arc<Known>, now: Instant) -> Arc<Known> {
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.retain(|_, entry| now < entry.ask_after);
            if self.entries.len() >= MAX_ENTRIES {
                return known;
            }
        }
        let action_ref = known.action.spec.action_ref.clone();
        if let Some(entry) = self.entries.get_mut(&action_ref)
            && entry.known.is_as_new_as(&known)
        {
            entry.ask_after = now + FRESH;
            return Arc::clone(&entry.known);
        }
        self.entries.insert(
            action_ref,
            Entry {
                known: Arc::clone(&known),
                ask_after: now + FRESH,
            },
        );
        known
    }
}

impl Known {
    fn is_as_new_as(&self, other: &Self) -> bool {
        self.action.id == other.action.id && self.action.version >= other.action.version
    }
}

/// Actions with their compiled schemas.
pub(crate) struct Catalog {
    store: Arc<dyn ActionStore>,
    /// Held for single look-ups, never while compiling or across an await.
    cache: Mutex<Cache>,
}

impl Catalog {
    pub(crate) fn new(store: Arc<dyn ActionStore>) -> Self {
        Self {
            store,
            cache: Mutex::default(),
        }
    }

    /// The action with this ref. That there is none is asked each time, so that a new action can
    /// be used at once.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) async fn find(
        &self,
        action_ref: &ActionRef,
    ) -> Result<Option<Arc<Known>>, StoreError> {
        let look = self.cache().look(action_ref, Instant::now());
        if let Look::Use(known) = look {
            return Ok(Some(known));
        }
        match self.store.find_action(action_ref).await? {
            Some(action) => Ok(Some(self.learn(action))),
            None => {
                self.cache().entries.remove(action_ref);
                Ok(None)
            }
        }
    }

    /// Takes over an action that was read or changed just now.
    pub(crate) fn learn(&self, action: Action) -> Arc<Known> {
        let now = Instant::now();
        {
            // The usual case: nothing has changed, so nothing is compiled.
            let mut cache = self.cache();
            if let Some(entry) = cache.entries.get_mut(&action.spec.action_ref)
                && entry.known.action.id == action.id
                && entry.known.action.version >= action.version
            {
                entry.ask_after = now + FRESH;
                return Arc::clone(&entry.known);
            }
        }
        let known = Arc::new(Known::new(action));
        self.cache().keep(known, now)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        // Every change is a single statement, so a poisoned cache is still good.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use attune_core::{ActionId, ActionSpec, Builtin, PartitionId, Run};

    use super::*;

    fn known(version: i64) -> Arc<Known> {
        let spec = ActionSpec::new("a.b".parse().unwrap(), Run::Builtin(Builtin::Noop));
        let action = Action {
            id: ActionId(1),
            partition: PartitionId(0),
            version,
            spec,
        };
        Arc::new(Known::new(action))
    }

    fn used(look: Look) -> Option<i64> {
        match look {
            Look::Use(known) => Some(known.action.version),
            Look::Ask => None,
        }
    }

    #[test]
    fn one_asks_and_the_others_use_what_is_there() {
        let (mut cache, start, name) = (Cache::default(), Instant::now(), "a.b".parse().unwrap());
        assert_eq!(used(cache.look(&name, start)), None);
        cache.keep(known(1), start);
        assert_eq!(used(cache.look(&name, start)), Some(1));
        let later = start + FRESH;
        assert_eq!(used(cache.look(&name, later)), None);
        assert_eq!(used(cache.look(&name, later)), Some(1));
        assert_eq!(used(cache.look(&name, later + FRESH)), None);
    }

    #[test]
    fn an_answer_that_was_overtaken_changes_nothing() {
        let (mut cache, start, name) = (Cache::default(), Instant::now(), "a.b".parse().unwrap());
        cache.keep(known(2), start);
        assert_eq!(cache.keep(known(1), start).action.version, 2);
        assert_eq!(used(cache.look(&name, start)), Some(2));
        assert_eq!(cache.keep(known(3), start).action.version, 3);
    }
}
