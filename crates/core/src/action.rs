//! Actions: what can be run, and under which limits.

mod retry;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{ActionId, PartitionId};
use crate::input;
use crate::policy::{ActionPolicy, check_count};
use crate::reject::Reject;
use crate::resources::Resources;
use crate::secret::{EnvValue, check_secret_name};

pub(crate) use retry::MAX_ATTEMPTS;

/// The name of an action: its pack, a dot, and its name in the pack, as in `core.http.get`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ActionRef(String);

impl ActionRef {
    /// How long a ref may be, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Checks the form of a ref without keeping it.
    ///
    /// # Errors
    /// Words that say what is wrong and what would be right.
    pub fn check(text: &str) -> Result<(), String> {
        let well_formed = text.len() <= Self::MAX_BYTES
            && text.split('.').count() >= 2
            && text.split('.').all(|part| {
                !part.is_empty()
                    && part
                        .bytes()
                        .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
            });
        if well_formed {
            return Ok(());
        }
        let shown: String = text.chars().take(64).collect();
        Err(format!(
            "{shown:?} is not an action ref; use pack.name in lower-case letters, digits, `_`, `-` and dots, at most {} bytes",
            Self::MAX_BYTES
        ))
    }

    /// The ref as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The pack: what stands before the first dot.
    pub fn pack(&self) -> &str {
        self.0.split('.').next().unwrap_or_default()
    }
}

impl TryFrom<String> for ActionRef {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::check(&text).map(|()| Self(text))
    }
}

impl std::str::FromStr for ActionRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::try_from(text.to_owned())
    }
}

impl From<ActionRef> for String {
    fn from(value: ActionRef) -> Self {
        value.0
    }
}

impl fmt::Display for ActionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What a worker runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Run {
    /// A program and its arguments; never a shell line built from parameters.
    Program(Vec<String>),
    /// Something the worker knows how to do itself.
    Builtin(Builtin),
}

/// The actions of the pack `core`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Builtin {
    /// `core.noop`: does nothing.
    #[serde(rename = "noop")]
    Noop,
    /// `core.echo`: returns its parameters.
    #[serde(rename = "echo")]
    Echo,
    /// `core.sleep`: waits for `seconds`.
    #[serde(rename = "sleep")]
    Sleep,
    /// `core.fail`: fails with `message`.
    #[serde(rename = "fail")]
    Fail,
    /// `core.command`: runs the program and arguments in `argv`.
    #[serde(rename = "command")]
    Command,
    /// `core.http.get`: fetches `url`.
    #[serde(rename = "http.get")]
    HttpGet,
}

/// What happens to an execution whose worker died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnWorkerLost {
    /// It takes its place in the queue again, until its attempts are used up.
    #[default]
    Retry,
    /// It ends as abandoned.
    Fail,
}

/// An action as its author writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionSpec {
    /// Its name.
    #[serde(rename = "ref")]
    pub action_ref: ActionRef,
    /// What it is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// What a worker runs.
    pub run: Run,
    /// The JSON schema of its parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// How long a run may take, in seconds.
    #[serde(default = "default_run_timeout")]
    pub timeout_seconds: u32,
    /// The workers that may run it.
    #[serde(default = "default_pool")]
    pub pool: String,
    /// What happens when a worker dies while running it: whether `policy.retry.on` has `worker_lost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_worker_lost: Option<OnWorkerLost>,
    /// How often it may be tried in all: `policy.retry.max_attempts` where that is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Variables that its program sees beside those that the worker lets through: texts, and names of secrets that
    /// the worker has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, EnvValue>,
    /// What a run of it may take of its machine.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// Its limits.
    #[serde(default)]
    pub policy: ActionPolicy,
}

fn default_run_timeout() -> u32 {
    3600
}

fn default_pool() -> String {
    "default".to_owned()
}

impl ActionSpec {
    /// A spec with the defaults that an action file has.
    pub fn new(action_ref: ActionRef, run: Run) -> Self {
        Self {
            action_ref,
            description: String::new(),
            run,
            parameters: None,
            timeout_seconds: default_run_timeout(),
            pool: default_pool(),
            on_worker_lost: None,
            max_attempts: None,
            env: BTreeMap::new(),
            resources: Resources::default(),
            policy: ActionPolicy::default(),
        }
        .settled()
    }

    /// How many bytes of a dispatch its definition takes: what to run, and the environment.
    pub fn dispatch_bytes(&self) -> usize {
        serde_json::to_vec(&(&self.run, &self.env, &self.action_ref, &self.resources))
            .map_or(0, |bytes| bytes.len())
    }

    /// Checks what the types alone do not.
    ///
    /// # Errors
    /// A [`Reject`] that names the field, its problem and what would be right.
    pub fn check(&self) -> Result<(), Reject> {
        input::check_run_timeout(self.timeout_seconds)?;
        check_pool(&self.pool)?;
        if let Run::Program(argv) = &self.run {
            if argv.first().is_none_or(String::is_empty) {
                return Err(Reject::field(
                    "run.program",
                    "`run.program` needs a program, as in [/bin/echo, hi]",
                ));
            }
            if argv.iter().any(|argument| argument.contains('\0')) {
                return Err(Reject::field(
                    "run.program",
                    "`run.program` contains a NUL character",
                ));
            }
        }
        if self.description.contains('\0') {
            return Err(Reject::field(
                "description",
                "`description` contains a NUL character",
            ));
        }
        self.check_size()?;
        if let Some(schema) = &self.parameters {
            input::check_json_object("parameters", &schema.to_string())?;
        }
        for (key, value) in &self.env {
            if key.is_empty() || key.contains(['=', '\0']) {
                return Err(Reject::field(
                    "env",
                    format!("`env` has a variable that no system can set: {key:?}"),
                ));
            }
            if value.plain().is_some_and(|text| text.contains('\0')) {
                return Err(Reject::field(
                    "env",
                    format!("`env`: the value of {key:?} contains a NUL character"),
                ));
            }
            if let Some(Err(problem)) = value.secret_name().map(check_secret_name) {
                return Err(Reject::field("env", format!("`env.{key}`: {problem}")));
            }
        }
        self.resources.check()?;
        check_count("max_attempts", self.max_attempts, "3")?;
        self.policy.check(self.parameters.as_ref())?;
        self.check_retry()?;
        self.check_built_in()
    }

    /// An executor keeps the definitions of all actions of its partitions. Schemas have a bound of
    /// their own, where they are compiled.
    fn check_size(&self) -> Result<(), Reject> {
        fn bytes(value: &impl Serialize) -> usize {
            serde_json::to_vec(value).map_or(usize::MAX, |text| text.len())
        }
        let parts = [
            ("description", bytes(&self.description)),
            ("run", bytes(&self.run)),
            ("env", bytes(&self.env)),
        ];
        let all = parts
            .iter()
            .fold(0_usize, |sum, (_, bytes)| sum.saturating_add(*bytes));
        match parts.into_iter().max_by_key(|(_, bytes)| *bytes) {
            Some((field, bytes)) if all > MAX_DEFINITION_BYTES => Err(Reject::field(
                field,
                format!(
                    "`{field}` takes {bytes} bytes as JSON; `description`, `run` and `env` may take \
                     {MAX_DEFINITION_BYTES} together: put what is large into a file that the \
                     program reads"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Whoever submits `core.echo` relies on what it does; its limits are everybody's to set.
    fn check_built_in(&self) -> Result<(), Reject> {
        let built_in = Self::core_pack();
        let mut built_in = built_in.iter();
        match built_in.find(|one| one.action_ref == self.action_ref) {
            Some(built_in) if built_in.run != self.run => Err(Reject::field(
                "run",
                format!(
                    "`run` of {} cannot be changed, because every installation has it; give yours \
                     a name of its own",
                    self.action_ref
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The actions every installation has.
    pub fn core_pack() -> Vec<Self> {
        let builtin = |name: &str, description: &str, builtin| Self {
            description: description.to_owned(),
            ..Self::new(ActionRef(format!("core.{name}")), Run::Builtin(builtin))
        };
        let object = |required: &[&str], properties: Value| {
            Some(
                serde_json::json!({"type": "object", "required": required, "properties": properties}),
            )
        };
        vec![
            builtin("noop", "Does nothing.", Builtin::Noop),
            builtin("echo", "Returns its parameters.", Builtin::Echo),
            Self {
                parameters: object(
                    &["seconds"],
                    serde_json::json!({"seconds": {"type": "number", "minimum": 0}}),
                ),
                ..builtin("sleep", "Waits for the given seconds.", Builtin::Sleep)
            },
            Self {
                parameters: object(&[], serde_json::json!({"message": {"type": "string"}})),
                ..builtin("fail", "Fails with the given message.", Builtin::Fail)
            },
            Self {
                parameters: object(
                    &["argv"],
                    serde_json::json!({"argv": {"type": "array", "minItems": 1, "items": {"type": "string"}}}),
                ),
                ..builtin(
                    "command",
                    "Runs a program with the given arguments.",
                    Builtin::Command,
                )
            },
            Self {
                parameters: object(
                    &["url"],
                    serde_json::json!({"url": {"type": "string"}, "headers": {"type": "object", "additionalProperties": {"type": "string"}}}),
                ),
                ..builtin("http.get", "Fetches a URL.", Builtin::HttpGet)
            },
        ]
    }
}

/// How long the name of a pool may be, in bytes.
const MAX_POOL_BYTES: usize = 64;

/// Checks that workers can be of a pool of this name.
///
/// # Errors
/// A [`Reject`] that names `pool`.
pub fn check_pool(name: &str) -> Result<(), Reject> {
    let fits = |b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    if (1..=MAX_POOL_BYTES).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    Err(Reject::field(
        "pool",
        format!("`pool` takes 1 to {MAX_POOL_BYTES} lower-case letters, digits, `_` and `-`"),
    ))
}

/// How many bytes the description, the command and the environment of an action may take together,
/// as JSON.
const MAX_DEFINITION_BYTES: usize = 64 * 1024;

/// An action as the system keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// Its number.
    pub id: ActionId,
    /// The partition it belongs to.
    pub partition: PartitionId,
    /// Rises with every change of the spec.
    pub version: i64,
    /// What its author wrote.
    pub spec: ActionSpec,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refs_have_a_pack_and_a_name() {
        assert_eq!("core.http.get".parse::<ActionRef>().unwrap().pack(), "core");
        for bad in [
            "",
            "core",
            "core.",
            ".x",
            "Core.echo",
            "core echo.x",
            "a.b\0",
            &"a.".repeat(70),
        ] {
            assert!(ActionRef::check(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_core_pack_is_sound() {
        for spec in ActionSpec::core_pack() {
            assert_eq!(spec.check(), Ok(()), "{}", spec.action_ref);
            let text = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<ActionSpec>(&text).unwrap(), spec);
        }
    }

    #[test]
    fn impossible_values_name_their_field() {
        let mut spec = ActionSpec::core_pack().remove(0);
        spec.policy.concurrency.limit = Some(0);
        assert_eq!(
            spec.check().unwrap_err().field.as_deref(),
            Some("policy.concurrency.limit")
        );
        spec.policy.concurrency.limit = None;
        spec.run = Run::Program(vec![]);
        assert_eq!(
            spec.check().unwrap_err().field.as_deref(),
            Some("run.program")
        );
        spec.run = Run::Builtin(Builtin::Fail);
        let reject = spec.check().unwrap_err();
        assert_eq!(reject.field.as_deref(), Some("run"), "{reject:?}");
        spec.action_ref = "mine.noop".parse().unwrap();
        assert_eq!(spec.check(), Ok(()));
        for pool in ["", "Blue", "a b", &"a".repeat(65)] {
            spec.pool = pool.to_owned();
            assert_eq!(spec.check().unwrap_err().field.as_deref(), Some("pool"));
        }
        spec.pool = "a".repeat(64);
        assert_eq!(spec.check(), Ok(()));
    }

    #[test]
    fn a_definition_is_bounded_and_its_largest_part_named() {
        let mut spec = ActionSpec::core_pack().remove(0);
        spec.description = "x".repeat(MAX_DEFINITION_BYTES - 100);
        assert_eq!(spec.check(), Ok(()));
        spec.env.insert("PAD".to_owned(), "x".repeat(100).into());
        let reject = spec.check().unwrap_err();
        assert_eq!(reject.field.as_deref(), Some("description"));
        assert!(reject.message.contains("65536 together"), "{reject}");
        spec.description.clear();
        spec.env
            .insert("PAD".to_owned(), "\n".repeat(33_000).into());
        let reject = spec.check().unwrap_err();
        assert_eq!(reject.field.as_deref(), Some("env"), "as it is stored");
    }
}
