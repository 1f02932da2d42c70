//! Policy documents: what an operator writes about all actions, a pack, an action or a user.
//!
//! What is read here is checked as far as one document tells; what it means for the actions that there
//! are is checked by [`PolicySet::check`](super::PolicySet::check).

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::refused::{misplaced, refused_in_defaults, refused_in_policy, refused_of_user};
use super::retry::{Backoff, TryEnds};
use super::{ActionPolicy, OnLimit, Priorities, QueueBounds, Retry};
use crate::action::ActionRef;
use crate::input;
use crate::plain::plain;
use crate::priority::Priority;
use crate::reject::Reject;
use crate::strict::{self, Strict};

/// How many bytes a document may have, as JSON.
pub const MAX_DOCUMENT_BYTES: usize = 64 * 1024;

/// About what a document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyScope {
    /// Every action.
    Global,
    /// Every action of a pack.
    Pack,
    /// One action.
    Action,
    /// One user, or every user without a document.
    User,
}

impl PolicyScope {
    /// Its name on the wire and in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Pack => "pack",
            Self::Action => "action",
            Self::User => "user",
        }
    }
}

impl std::str::FromStr for PolicyScope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Global, Self::Pack, Self::Action, Self::User];
        let mut all = all.into_iter();
        all.find(|scope| scope.as_str() == text).ok_or_else(|| {
            let scope: String = text.chars().take(64).collect();
            format!("{scope:?} is no scope; there are `global`, `pack`, `action` and `user`")
        })
    }
}

/// About whom a document is: there is one for each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyTarget {
    /// Every action.
    Global,
    /// Every action of a pack.
    Pack(String),
    /// One action.
    Action(ActionRef),
    /// One user; `*` stands for every user without a document.
    User(String),
}

impl PolicyTarget {
    /// Every user without a document.
    pub const EVERY_USER: &str = "*";

    /// A target by its scope and its name in it; `global` has the empty name.
    ///
    /// # Errors
    /// A [`Reject`] that names `target`.
    pub fn of(scope: PolicyScope, target: &str) -> Result<Self, Reject> {
        let wrong = |problem: String| Reject::field("target", format!("`target`: {problem}"));
        match scope {
            PolicyScope::Global if target.is_empty() => Ok(Self::Global),
            PolicyScope::Global => Err(wrong("`global` has none; leave it out".to_owned())),
            _ if target.is_empty() => Err(wrong(format!(
                "it is required; say which {}",
                scope.as_str()
            ))),
            // A pack is named as actions begin.
            PolicyScope::Pack => match ActionRef::check(&format!("{target}.x")) {
                Ok(()) if !target.contains('.') => Ok(Self::Pack(target.to_owned())),
                _ => Err(wrong(format!(
                    "{:?} is not a pack; use lower-case letters, digits, `_` and `-`",
                    target.chars().take(64).collect::<String>()
                ))),
            },
            PolicyScope::Action => target.parse().map(Self::Action).map_err(wrong),
            PolicyScope::User => {
                input::check_required_text("target", target)?;
                // Programs that read a path take these for steps up and down, and there is no other way to
                // it than `/api/v1/policies/user/{target}`.
                if matches!(target, "." | "..") {
                    let problem = format!("no user of a document may be called {target:?}");
                    return Err(wrong(problem));
                }
                Ok(Self::User(target.to_owned()))
            }
        }
    }

    /// About what it is.
    #[must_use]
    pub fn scope(&self) -> PolicyScope {
        match self {
            Self::Global => PolicyScope::Global,
            Self::Pack(_) => PolicyScope::Pack,
            Self::Action(_) => PolicyScope::Action,
            Self::User(_) => PolicyScope::User,
        }
    }

    /// The pack, the action's ref or the user; empty for all.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Global => "",
            Self::Pack(name) | Self::User(name) => name,
            Self::Action(action_ref) => action_ref.as_str(),
        }
    }

    /// Whether it says something about this action.
    #[must_use]
    pub fn covers(&self, action_ref: &ActionRef) -> bool {
        match self {
            Self::Global => true,
            Self::Pack(pack) => pack == action_ref.pack(),
            Self::Action(other) => other == action_ref,
            Self::User(_) => false,
        }
    }
}

impl fmt::Display for PolicyTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Global => f.write_str("global"),
            other => write!(f, "{} {}", other.scope().as_str(), other.name()),
        }
    }
}

/// What actions have that do not say it themselves. Only behaviour: limits are not inherited.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionDefaults {
    /// What becomes of executions that come when a limit is reached.
    #[serde(default, skip_serializing_if = "is_default")]
    pub concurrency: ConcurrencyDefaults,
    /// How many may wait, how long, in which order, and what becomes of those who come when it is full.
    #[serde(default, skip_serializing_if = "is_default")]
    pub queue: QueueBounds,
    /// Which priority executions have, and what priorities are worth.
    #[serde(default, skip_serializing_if = "Priorities::is_default")]
    pub priority: Priorities,
    /// What is tried again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retry: RetryDefaults,
}

/// What of `concurrency` is behaviour and no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConcurrencyDefaults {
    /// What becomes of an execution that comes when its limit is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<OnLimit>,
}

/// What is tried again of actions that do not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryDefaults {
    /// How often it may be tried in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Which ends of a try are tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<TryEnds>,
    /// How long it waits before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
}

fn is_default<T: PartialEq + Default>(value: &T) -> bool {
    *value == T::default()
}

impl ActionDefaults {
    /// As the policy of an action that says nothing else. What has a meaning only beside a limit is left
    /// out.
    fn alone(&self) -> ActionPolicy {
        let retry = self.retry;
        ActionPolicy {
            queue: self.queue,
            priority: self.priority.clone(),
            retry: Some(Retry {
                max_attempts: retry.max_attempts,
                on: retry.on,
                backoff: retry.backoff.unwrap_or_default(),
                hold_slot: false,
            }),
            ..ActionPolicy::default()
        }
    }

    fn check(&self) -> Result<(), Reject> {
        self.alone().check(None).map_err(|reject| Reject {
            field: reject.field.map(|field| under_defaults(&field)),
            message: reject.message.replace("`policy.", "`action_defaults."),
            ..reject
        })
    }
}

/// The path of a field of a policy where it stands in `action_defaults`.
pub(super) fn under_defaults(field: &str) -> String {
    let inner = field.strip_prefix("policy.").unwrap_or(field);
    format!("action_defaults.{inner}")
}

/// What is said of a user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserPolicy {
    /// What rules can ask for as `user.tier`.
    pub tier: Option<String>,
    /// The highest priority of what the user submits: whatever would have more has this one.
    pub max_priority: Option<Priority>,
}

impl UserPolicy {
    /// A priority, lowered to the highest that the user may have.
    #[must_use]
    pub fn lowered(&self, priority: Priority) -> Priority {
        // The higher goes first and is the smaller.
        self.max_priority.map_or(priority, |max| priority.max(max))
    }
}

/// As a user's document has it under `policy`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserPart {
    #[serde(default)]
    priority: UserPriorities,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserPriorities {
    #[serde(default)]
    max: Option<Priority>,
}

/// A document as it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyDocument {
    /// About what it is.
    pub scope: PolicyScope,
    /// The pack, the action's ref or the user; left out for `global`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// The policy of the action; of a user, `priority.max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Value>,
    /// What actions have that do not say it themselves; for `global` and `pack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_defaults: Option<Value>,
    /// What rules can ask for as `user.tier`; for `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Refused for now, with words that say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Value>,
}

/// What a document says.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// What actions inherit.
    Defaults(Box<ActionDefaults>),
    /// The policy of one action.
    Action(Box<ActionPolicy>),
    /// What is said of a user.
    User(UserPolicy),
}

impl Content {
    /// As it is stored: of an action its policy, of others the document without scope and target.
    #[must_use]
    pub fn stored(&self) -> Value {
        match self {
            Self::Action(policy) => json!(policy),
            Self::Defaults(defaults) => json!({"action_defaults": defaults}),
            Self::User(user) => {
                let mut stored = Map::new();
                if let Some(tier) = &user.tier {
                    stored.insert("tier".to_owned(), json!(tier));
                }
                if let Some(max) = user.max_priority {
                    stored.insert("policy".to_owned(), json!({"priority": {"max": max}}));
                }
                Value::Object(stored)
            }
        }
    }

    /// Reads what is stored about a target.
    ///
    /// # Errors
    /// What of it this program cannot read.
    pub fn from_stored(target: &PolicyTarget, stored: Value) -> Result<Self, Reject> {
        let document = PolicyDocument::from_stored(target, stored);
        document.read().map(|(_, content)| content)
    }
}

impl PolicyDocument {
    /// The document of what is stored about a target.
    #[must_use]
    pub fn from_stored(target: &PolicyTarget, mut stored: Value) -> Self {
        let mut part = |name: &str| stored.get_mut(name).map(Value::take);
        let (mut policy, action_defaults, tier) = match target {
            PolicyTarget::Action(_) => (None, None, None),
            _ => (part("policy"), part("action_defaults"), part("tier")),
        };
        if matches!(target, PolicyTarget::Action(_)) {
            policy = Some(stored);
        }
        Self {
            scope: target.scope(),
            target: target.name().to_owned(),
            policy,
            action_defaults,
            tier: tier.and_then(|tier| tier.as_str().map(str::to_owned)),
            weight: None,
        }
    }

    /// What it is about, and what it says.
    ///
    /// # Errors
    /// A [`Reject`] that names the field, its problem and what would be right.
    pub fn read(&self) -> Result<(PolicyTarget, Content), Reject> {
        let target = PolicyTarget::of(self.scope, &self.target)?;
        let text = serde_json::to_string(self)
            .map_err(|error| Reject::field(self.largest(), error.to_string()))?;
        let bytes = text.len();
        if bytes > MAX_DOCUMENT_BYTES {
            let words = format!(
                "the document takes {bytes} bytes as JSON; {MAX_DOCUMENT_BYTES} are allowed: say less in it"
            );
            return Err(Reject::field(self.largest(), words));
        }
        let parts = [
            ("policy", &self.policy),
            ("action_defaults", &self.action_defaults),
        ];
        for (field, part) in parts {
            if let Some(part) = part {
                input::check_json(field, &part.to_string())?;
            }
        }
        if self.weight.is_some() {
            let words = "`weight` is not supported yet in any scope; leave it out";
            return Err(Reject::field("weight", words));
        }
        if self.tier.is_some() && self.scope != PolicyScope::User {
            return Err(misplaced("tier", "it is said of users: scope `user`"));
        }
        let content = match self.scope {
            PolicyScope::Global | PolicyScope::Pack => self.read_defaults()?,
            PolicyScope::Action => self.read_action()?,
            PolicyScope::User => self.read_user()?,
        };
        Ok((target, content))
    }

    /// The part of it that is surely too long when the whole is.
    fn largest(&self) -> &'static str {
        match (&self.policy, &self.action_defaults) {
            (_, Some(_)) => "action_defaults",
            (Some(_), None) => "policy",
            (None, None) => "tier",
        }
    }

    fn read_defaults(&self) -> Result<Content, Reject> {
        if let Some(policy) = &self.policy {
            return Err(refused_in_policy(policy, self.scope));
        }
        let Some(given) = &self.action_defaults else {
            let words = "`action_defaults` is missing: a document of this scope says what actions have that \
                         do not say it themselves; to take one back, remove it";
            return Err(Reject::field("action_defaults", words));
        };
        check_kinds("action_defaults", given)?;
        if let Some(refused) = refused_in_defaults(given) {
            return Err(refused);
        }
        let defaults: ActionDefaults = typed("action_defaults", given)?;
        defaults.check()?;
        Ok(Content::Defaults(Box::new(defaults)))
    }

    fn read_action(&self) -> Result<Content, Reject> {
        self.refuse_defaults()?;
        let Some(given) = &self.policy else {
            let words = "`policy` is missing: it is what a document of an action says";
            return Err(Reject::field("policy", words));
        };
        let policy: ActionPolicy = typed("policy", given)?;
        policy.check(None)?;
        Ok(Content::Action(Box::new(policy)))
    }

    fn read_user(&self) -> Result<Content, Reject> {
        self.refuse_defaults()?;
        if let Some(tier) = &self.tier {
            input::check_text("tier", tier)?;
        }
        let given = self.policy.clone().unwrap_or_else(|| json!({}));
        if let Some(refused) = refused_of_user(&given) {
            return Err(refused);
        }
        let part: UserPart = typed("policy", &given)?;
        Ok(Content::User(UserPolicy {
            tier: self.tier.clone(),
            max_priority: part.priority.max,
        }))
    }

    fn refuse_defaults(&self) -> Result<(), Reject> {
        match self.action_defaults {
            None => Ok(()),
            Some(_) => Err(misplaced(
                "action_defaults",
                "it says what actions inherit: scopes `global` and `pack`",
            )),
        }
    }
}

/// That something is an object, in words that name it.
fn check_kinds(place: &str, given: &Value) -> Result<(), Reject> {
    if given.is_object() {
        return Ok(());
    }
    let words = format!("`{place}` must have members, like {{queue: {{max_length: 1000}}}}");
    Err(Reject::field(place, words))
}

/// Reads a part of a document; an error names the path of the field.
fn typed<T: DeserializeOwned>(place: &str, given: &Value) -> Result<T, Reject> {
    serde_path_to_error::deserialize(Strict(given)).map_err(|error| {
        let inside = strict::place(error.path());
        let problem = error.into_inner().to_string();
        let mut field = match inside.as_str() {
            "" => place.to_owned(),
            inside => format!("{place}.{inside}"),
        };
        // The place of such a field is where the parser stood, or itself.
        let name = strict::named(&problem);
        if let Some(name) = name.filter(|name| !field.ends_with(&format!(".{name}"))) {
            field = format!("{field}.{name}");
        }
        let problem = plain(&problem);
        Reject::field(&*field, format!("`{field}`: {problem}"))
    })
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
