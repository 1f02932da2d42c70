//! The server's own view of the actions, at most a second or so old.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use attune_core::{Action, ActionId, ActionRef, Marks, Reject, Submission};
use attune_secrets::Keyring;
use attune_store::ActionStore;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use serde_json::Value;
use tokio::time::Instant;
use tracing::error;

use crate::aside::{Aside, Kind, Line};
use crate::budget::{SMALL_BODY, Share};
use crate::error::ApiError;
use crate::extent::Extent;
use crate::schema::ParameterSchema;

/// How long an action is used without asking the store again. A change made through another
/// server is seen after so long.
const FRESH: Duration = Duration::from_secs(1);
/// What all actions that are kept may take, in bytes; beyond it those that were used least are
/// forgotten. Enough for some 100,000 without a schema.
const MAX_BYTES: u64 = 128 * 1024 * 1024;
/// How many actions the cache is laid out for.
const EXPECTED_ENTRIES: usize = 100_000;
/// What an action takes beside its texts, in bytes.
const ENTRY_BYTES: u64 = 1024;
/// A compiled schema takes several times the bytes of its text.
const SCHEMA_FACTOR: u64 = 8;
/// What a compiled pattern takes, in bytes: most some kilobytes, some hundreds of them.
const PATTERN_BYTES: u64 = 64 * 1024;

/// An action with its compiled schema.
pub(crate) struct Known {
    /// The action.
    pub(crate) action: Action,
    /// `None` takes any parameters; an error is what is wrong with the stored schema.
    schema: Option<Result<Arc<ParameterSchema>, Reject>>,
    /// The checks of its schema that are not done at once.
    line: Line,
}

impl Known {
    fn new(action: Action, schema: Option<Result<ParameterSchema, Reject>>, line: Line) -> Self {
        if let Some(Err(reject)) = &schema {
            error!(
                action.r#ref = %action.spec.action_ref,
                error.message = %reject,
                "a stored action has a broken parameter schema; apply it again"
            );
        }
        Self {
            action,
            schema: schema.map(|compiled| compiled.map(Arc::new)),
            line,
        }
    }

    /// What its schema marks as secret, if anything.
    pub(crate) fn marks(&self) -> Option<&Marks> {
        self.schema.as_ref()?.as_ref().ok()?.marks()
    }

    /// Seals what is secret in the parameters of a submission.
    ///
    /// # Errors
    /// 422 when it is too much.
    pub(crate) fn seal(&self, keys: &Keyring, submission: &mut Submission) -> Result<(), ApiError> {
        let Some(marks) = self.marks() else {
            return Ok(());
        };
        let sealed = keys.seal(&submission.action_ref, marks, &submission.parameters)?;
        if let Some(sealed) = sealed {
            submission.parameters = sealed;
        }
        Ok(())
    }

    /// Checks the parameters of a submission against the schema.
    ///
    /// # Errors
    /// 422 that names the field; 503 when the check has not ended by `deadline`.
    pub(crate) async fn check(
        &self,
        submission: &Submission,
        aside: &Aside,
        deadline: Instant,
    ) -> Result<(), ApiError> {
        let schema = match &self.schema {
            None => return Ok(()),
            Some(Ok(schema)) => Arc::clone(schema),
            Some(Err(reject)) => {
                return Err(ApiError::field(
                    "action_ref",
                    format!(
                        "the stored schema of `{}` is broken: {reject}",
                        submission.action_ref
                    ),
                ));
            }
        };
        let text = submission.parameters.get();
        let problem = format!(
            "`parameters` could not be checked against the schema of `{}` in time, and nothing \
             was done; repeat it later, with smaller parameters, or give the action a simpler \
             schema",
            submission.action_ref
        );
        // Parsed only when it is its turn: until then it waits as text, of which a tree can take
        // 65 times as much.
        if schema.is_light_for(text.len()) {
            let _share = match text.len() <= SMALL_BODY {
                true => Share::free(),
                false => aside.parsed.take(text.len(), deadline, &problem).await?,
            };
            return Ok(check_text(&schema, text)?);
        }
        let text = submission.parameters.clone();
        let kind = Kind::of(schema.patterns());
        let work = move || check_text(&schema, text.get());
        let bytes = submission.parameters.get().len();
        let line = (&self.line, kind);
        let checked = aside.run(line, bytes, deadline, &problem, work);
        Ok(checked.await??)
    }
}

/// Parses parameters and checks them.
fn check_text(schema: &ParameterSchema, text: &str) -> Result<(), Reject> {
    let parameters: Value = serde_json::from_str(text)
        .map_err(|error| Reject::field("parameters", format!("`parameters`: {error}")))?;
    schema.check(&parameters)
}

/// Compiles a schema beside the threads that serve requests: a hundred patterns take a while.
///
/// # Errors
/// 503 when it has not ended by `deadline`; the inner error is what is wrong with the schema.
pub(crate) async fn compile(
    schema: &Value,
    aside: &Aside,
    deadline: Instant,
) -> Result<Result<ParameterSchema, Reject>, ApiError> {
    let problem = "the schema in `parameters` could not be compiled in time, and nothing was \
                   done; repeat it later, or simplify it";
    let kind = Kind::of(Extent::patterns_in(schema));
    let schema = schema.clone();
    let work = move || ParameterSchema::compile(&schema);
    let line = (&Line::default(), kind);
    aside.run(line, 0, deadline, problem, work).await
}

/// An action in the cache.
struct Entry {
    known: Arc<Known>,
    /// When it is asked for again. Moved on by whoever goes to ask, so that one asks and not
    /// everyone; if that one fails, the next does after another [`FRESH`].
    ask_after: Mutex<Instant>,
}

impl Entry {
    fn new(known: Arc<Known>, now: Instant) -> Self {
        Self {
            known,
            ask_after: Mutex::new(now + FRESH),
        }
    }

    /// Whether it may be used at `now` without asking the store.
    fn is_fresh(&self, now: Instant) -> bool {
        let mut ask_after = self.ask_after();
        if now < *ask_after {
            return true;
        }
        *ask_after = now + FRESH;
        false
    }

    fn ask_after(&self) -> MutexGuard<'_, Instant> {
        // Every change is a single statement, so what was poisoned is still good.
        self.ask_after
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn is_as_new_as(&self, other: &Action) -> bool {
        self.action.id == other.id && self.action.version >= other.version
    }
}

/// What an action and its compiled schema take in memory, roughly, in bytes.
#[derive(Clone)]
struct Weight;

impl Weighter<ActionRef, Arc<Entry>> for Weight {
    fn weight(&self, action_ref: &ActionRef, entry: &Arc<Entry>) -> u64 {
        let spec = &entry.known.action.spec;
        let schema = spec.parameters.as_ref().map_or(0, json_bytes);
        let env = spec
            .env
            .iter()
            .map(|(name, value)| name.len() + value.text_len());
        let bytes = 2 * action_ref.as_str().len() + spec.description.len() + env.sum::<usize>();
        let patterns = match &entry.known.schema {
            Some(Ok(schema)) => schema.patterns(),
            _ => 0,
        };
        ENTRY_BYTES + bytes as u64 + SCHEMA_FACTOR * schema as u64 + PATTERN_BYTES * patterns as u64
    }
}

/// The length of a schema as text, without writing it.
fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(json_bytes).sum::<usize>() + 2,
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| name.len() + 4 + json_bytes(value))
            .sum::<usize>(),
    }
}

/// Actions with their compiled schemas.
pub(crate) struct Catalog {
    store: Arc<dyn ActionStore>,
    cache: Cache<ActionRef, Arc<Entry>, Weight>,
    aside: Arc<Aside>,
}

impl Catalog {
    pub(crate) fn new(store: Arc<dyn ActionStore>, aside: Arc<Aside>) -> Self {
        Self {
            store,
            aside,
            cache: Cache::with_weighter(EXPECTED_ENTRIES, MAX_BYTES, Weight),
        }
    }

    /// The action with this ref. That there is none is asked each time, so that a new action can
    /// be used at once.
    ///
    /// # Errors
    /// When the store fails, or its schema has not been compiled by `deadline`.
    pub(crate) async fn find(
        &self,
        action_ref: &ActionRef,
        deadline: Instant,
    ) -> Result<Option<Arc<Known>>, ApiError> {
        let entry = self.cache.get(action_ref);
        if let Some(entry) = entry.filter(|entry| entry.is_fresh(Instant::now())) {
            return Ok(Some(Arc::clone(&entry.known)));
        }
        match self.store.find_action(action_ref).await? {
            Some(action) => self.learn(action, deadline).await.map(Some),
            None => {
                self.cache.remove(action_ref);
                Ok(None)
            }
        }
    }

    /// The actions with these ids, as far as they are in the cache.
    pub(crate) fn of_ids(&self, ids: &HashSet<ActionId>) -> Vec<Action> {
        let entries = self.cache.iter().map(|(_, entry)| entry);
        entries
            .filter(|entry| ids.contains(&entry.known.action.id))
            .map(|entry| entry.known.action.clone())
            .collect()
    }

    /// Takes over an action that was read or changed just now, unless something newer is there
    /// already: an answer of the store can be overtaken by a change.
    ///
    /// # Errors
    /// When its schema has not been compiled by `deadline`; then it is asked for again.
    pub(crate) async fn learn(
        &self,
        action: Action,
        deadline: Instant,
    ) -> Result<Arc<Known>, ApiError> {
        let now = Instant::now();
        let action_ref = action.spec.action_ref.clone();
        let kept = self.cache.get(&action_ref);
        // The usual case: nothing has changed, so nothing is compiled.
        let before = kept.clone();
        if let Some(entry) = kept.filter(|entry| entry.known.is_as_new_as(&action)) {
            *entry.ask_after() = now + FRESH;
            return Ok(Arc::clone(&entry.known));
        }
        // The same for all its versions: whoever changes it again and again has one thread, too.
        let line = before.map(|entry| Arc::clone(&entry.known.line));
        let line = line.unwrap_or_default();
        let compiled = match &action.spec.parameters {
            None => None,
            Some(schema) => match compile(schema, &self.aside, deadline).await {
                Ok(compiled) => Some(compiled),
                Err(error) => {
                    self.cache.remove(&action_ref);
                    return Err(error);
                }
            },
        };
        let known = Arc::new(Known::new(action, compiled, line));
        // Two that learn at once may leave the older one, for as long as it is fresh.
        let entry = Arc::new(Entry::new(Arc::clone(&known), now));
        self.cache.insert(action_ref, entry);
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use attune_core::{ActionSpec, Builtin, PartitionId, Run};

    use attune_store::StoreError;

    use super::*;

    fn catalog() -> Catalog {
        Catalog::new(Arc::new(Unasked), Arc::new(Aside::new()))
    }

    async fn learn(catalog: &Catalog, action: Action) -> Arc<Known> {
        let deadline = Instant::now() + Duration::from_secs(30);
        catalog.learn(action, deadline).await.unwrap()
    }

    fn action(name: &str, version: i64) -> Action {
        let spec = ActionSpec::new(name.parse().unwrap(), Run::Builtin(Builtin::Noop));
        Action {
            id: ActionId(1),
            partition: PartitionId(0),
            version,
            spec,
        }
    }

    /// A store that is never asked.
    struct Unasked;

    #[async_trait::async_trait]
    impl ActionStore for Unasked {
        async fn apply_action(
            &self,
            _spec: &ActionSpec,
            _partition_count: u16,
            _changed_by: &str,
        ) -> Result<attune_store::Applied, StoreError> {
            panic!("a fresh action is not asked for")
        }

        async fn find_action(&self, _action_ref: &ActionRef) -> Result<Option<Action>, StoreError> {
            panic!("a fresh action is not asked for")
        }

        async fn list_actions(
            &self,
            _after: Option<&ActionRef>,
            _limit: u32,
        ) -> Result<Vec<Action>, StoreError> {
            panic!("a fresh action is not asked for")
        }

        async fn policy_changes(
            &self,
            _action: ActionId,
        ) -> Result<Vec<attune_store::PolicyChange>, StoreError> {
            panic!("a fresh action is not asked for")
        }
    }

    #[test]
    fn one_asks_and_the_others_use_what_is_there() {
        let start = Instant::now();
        let entry = Entry::new(
            Arc::new(Known::new(action("a.b", 1), None, Line::default())),
            start,
        );
        assert!(entry.is_fresh(start));
        let later = start + FRESH;
        assert!(!entry.is_fresh(later));
        assert!(entry.is_fresh(later));
        assert!(!entry.is_fresh(later + FRESH));
    }

    #[tokio::test]
    async fn an_answer_that_was_overtaken_changes_nothing() {
        let catalog = catalog();
        for (learnt, kept) in [(2, 2), (1, 2), (3, 3)] {
            let known = learn(&catalog, action("a.b", learnt)).await;
            assert_eq!(known.action.version, kept);
        }
    }

    #[tokio::test]
    async fn versions_of_an_action_share_their_turn() {
        let catalog = catalog();
        let first = learn(&catalog, action("a.b", 1)).await;
        let second = learn(&catalog, action("a.b", 2)).await;
        let other = learn(&catalog, action("a.c", 1)).await;
        assert!(Arc::ptr_eq(&first.line, &second.line));
        assert!(!Arc::ptr_eq(&first.line, &other.line));
    }

    #[tokio::test]
    async fn many_actions_stay_known_and_large_schemas_make_room() {
        let catalog = catalog();
        let names: Vec<ActionRef> = (0..50_000)
            .map(|n| format!("many.n{n}").parse().unwrap())
            .collect();
        for name in &names {
            learn(&catalog, action(name.as_str(), 1)).await;
        }
        assert_eq!(catalog.cache.len(), names.len());
        let now = Instant::now();
        assert!(names.iter().all(|name| {
            let entry = catalog.cache.get(name).unwrap();
            *entry.ask_after() = now + FRESH;
            true
        }));
        let found = catalog.find(&names[0], now).await;
        assert!(found.unwrap().is_some());

        for n in 0..200 {
            let mut large = action(&format!("large.n{n}"), 1);
            large.spec.parameters = Some(serde_json::json!({"description": "x".repeat(1 << 20)}));
            learn(&catalog, large).await;
        }
        assert!(catalog.cache.weight() <= MAX_BYTES);
        assert!(catalog.cache.len() < names.len());
    }
}
