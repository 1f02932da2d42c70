//! Reads the sources, one after the other, and checks each on its own, so that every message can
//! name the place where the mistake was made.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::mem::discriminant;
use std::path::{Path, PathBuf};

use config::{Config, File, FileFormat};
use serde_json::Value;
use url::Url;

use crate::files::{read_file, read_secret, told_to_others};
use crate::keys::{self, KEYS, Key, Kind};
use crate::problem::{LoadError, Problem, Problems, Source};
use crate::settings::Settings;
use crate::{DEFAULT_FILE, suggest};

/// What begins every variable that is a setting.
const PREFIX: &str = "ATTUNE__";

/// Variables of Attune that are no settings: what a worker hands to the programs that it runs,
/// and what tests, scripts, examples and `docker/compose.yaml` use.
const OTHER_VARIABLES: [&str; 22] = [
    "ATTUNE_AMQP_URL",
    "ATTUNE_API_PORT",
    "ATTUNE_BIN",
    "ATTUNE_CA_FILE",
    "ATTUNE_CLIENT_CERT_FILE",
    "ATTUNE_CONFIG",
    "ATTUNE_GUARD",
    "ATTUNE_IMAGE",
    "ATTUNE_KEY",
    "ATTUNE_KEY_FILE",
    "ATTUNE_PLANTS",
    "ATTUNE_POSTGRES_IMAGE",
    "ATTUNE_RABBITMQ_IMAGE",
    "ATTUNE_SCHEDULES",
    "ATTUNE_PLANT",
    "ATTUNE_EXECUTION_ID",
    "ATTUNE_ATTEMPT",
    "ATTUNE_ACTION",
    "ATTUNE_PARAMETERS_FILE",
    "ATTUNE_SERVICES_DIR",
    "ATTUNE_URL",
    "ATTUNE_WORKER_IMAGE",
];

/// Variables of tests, none of them a setting.
const TEST_PREFIX: &str = "ATTUNE_TEST_";

/// Collects the sources of the settings; [`load`](Self::load) reads them.
///
/// The environment is handed in, so that nothing here depends on the process it runs in.
#[derive(Debug, Default)]
pub struct Loader {
    command_defaults: Vec<(String, String)>,
    file: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    flags: Vec<(String, String)>,
    leaves_files: bool,
}

/// Settings that were checked, and what to tell the operator about them.
#[derive(Debug)]
pub struct Loaded {
    /// What is in force.
    pub settings: Settings,
    /// What is probably a mistake but does no harm; to be logged.
    pub warnings: Vec<Warning>,
    sources: BTreeMap<&'static str, Source>,
}

impl Loaded {
    /// Where the value of a dotted key comes from.
    #[must_use]
    pub fn source(&self, key: &str) -> &Source {
        self.sources.get(key).unwrap_or(&Source::Default)
    }
}

/// A variable that looks like a setting but is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The variable as it was found, such as `ATTUNE_EXECUTOR_NAME`.
    pub variable: String,
    /// The variable that was probably meant, such as `ATTUNE__EXECUTOR__NAME`.
    pub meant: Option<String>,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the variable {} is ignored: a setting begins with {PREFIX} and has two underscores \
             between its parts",
            self.variable
        )?;
        match &self.meant {
            Some(meant) => write!(f, "; did you mean {meant}?"),
            None => Ok(()),
        }
    }
}

/// One value as it was found in one source.
struct Entry {
    key: String,
    value: Value,
    source: Source,
}

impl Loader {
    /// Starts with the default file alone.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Defaults that a command has instead of the default file's, as (dotted key, value); file,
    /// variables and flags override them.
    #[must_use]
    pub fn command_defaults<K: Into<String>, V: Into<String>>(
        mut self,
        defaults: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.command_defaults
            .extend(defaults.into_iter().map(|(k, v)| (k.into(), v.into())));
        self
    }

    /// The YAML file given with `--config`.
    #[must_use]
    pub fn file(mut self, path: Option<impl Into<PathBuf>>) -> Self {
        self.file = path.map(Into::into);
        self
    }

    /// Leaves the files alone that hold the values of other keys, such as `database.url_file`: for whoever
    /// needs none of these, and must not depend on whether they can be read at the moment.
    #[must_use]
    pub fn leave_files(mut self, leaves_files: bool) -> Self {
        self.leaves_files = leaves_files;
        self
    }

    /// The environment, usually `std::env::vars_os()`.
    #[must_use]
    pub fn environment<K: Into<OsString>, V: Into<OsString>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.variables
            .extend(variables.into_iter().map(|(k, v)| (k.into(), v.into())));
        self
    }

    /// Overrides from flags, as (dotted key, value).
    #[must_use]
    pub fn flags<K: Into<String>, V: Into<String>>(
        mut self,
        flags: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.flags
            .extend(flags.into_iter().map(|(k, v)| (k.into(), v.into())));
        self
    }

    /// Reads and checks everything.
    ///
    /// # Errors
    /// [`LoadError::Unreadable`] and [`LoadError::Syntax`] for the file; else
    /// [`LoadError::Invalid`] with every problem of every source, also where a later source
    /// overrides the wrong value.
    pub fn load(self) -> Result<Loaded, LoadError> {
        let mut layers = Layers {
            leaves_files: self.leaves_files,
            ..Layers::default()
        };
        for (key, value) in self.command_defaults {
            layers.admit(Entry {
                key,
                value: Value::String(value),
                source: Source::Command,
            });
        }
        if let Some(path) = &self.file {
            layers.admit_section("", read_file(path)?, &Source::File(path.clone()));
        }
        let mut warnings = Vec::new();
        for (name, value) in self.variables {
            layers.admit_variable(name, value, &mut warnings);
        }
        for (key, value) in self.flags {
            layers.admit(Entry {
                key,
                value: Value::String(value),
                source: Source::Flag,
            });
        }
        warnings.sort_by(|a, b| a.variable.cmp(&b.variable));
        layers.finish(warnings)
    }
}

/// What is wrong with a value that has a password and comes from a file that other accounts may use.
fn told_to_all(key: &Key, value: &Value, source: &Source) -> Option<String> {
    let Source::File(path) = source else {
        return None;
    };
    let url = value.as_str().filter(|_| matches!(key.kind, Kind::Url(_)));
    let url = url.and_then(|url| Url::parse(url).ok());
    let has_password = url.is_some_and(|url| {
        url.password().is_some() || url.query_pairs().any(|(name, _)| name == "password")
    });
    has_password.then(|| told_to_others(path))?
}

/// The values admitted so far, later sources over earlier ones, and what was wrong.
#[derive(Default)]
struct Layers {
    values: BTreeMap<&'static str, (Value, Source)>,
    problems: Vec<Problem>,
    leaves_files: bool,
}

impl Layers {
    /// Takes the keys of a section of a file, `path` being its dotted name.
    fn admit_section(&mut self, path: &str, section: Value, source: &Source) {
        let Value::Object(members) = section else {
            // A section whose keys are all commented out is null, and means nothing.
            if !section.is_null() {
                self.refuse_section(path, source.clone());
            }
            return;
        };
        for (name, value) in members {
            if name.contains('.') {
                let message = format!("`{name}` has a dot; write its parts as nested sections");
                self.refuse(join(path, &name), source.clone(), message);
                continue;
            }
            let key = join(path, &name);
            if keys::find(&key).is_none() && keys::in_section(&key).next().is_some() {
                self.admit_section(&key, value, source);
            } else {
                self.admit(Entry {
                    key,
                    value,
                    source: source.clone(),
                });
            }
        }
    }

    fn admit_variable(&mut self, name: OsString, value: OsString, warnings: &mut Vec<Warning>) {
        let Ok(name) = name.into_string() else {
            return; // Not a name that a setting can have.
        };
        let upper = name.to_ascii_uppercase();
        let Some(path) = upper.strip_prefix(PREFIX) else {
            warnings.extend(suspicious(&name, &upper));
            return;
        };
        let key = path.to_ascii_lowercase().replace("__", ".");
        let source = Source::Variable(name);
        match value.into_string() {
            // Compose files and shells pass on unset variables as empty ones.
            Ok(value) if value.is_empty() => {}
            Ok(_) if let Some(other) = self.variable_of(&key) => {
                let words = format!("it is given by {other} as well: unset one of the two");
                self.refuse(key, source, words);
            }
            Ok(value) => self.admit(Entry {
                key,
                value: Value::String(value),
                source,
            }),
            Err(_) => self.refuse(key, source, "the value is not UTF-8".to_owned()),
        }
    }

    /// The variable by which a setting was given: the case of its letters does not matter.
    fn variable_of(&self, key: &str) -> Option<String> {
        let key = keys::find(key)?;
        match self.values.get(key.name)? {
            (_, Source::Variable(name)) => Some(name.clone()),
            _ => None,
        }
    }

    /// Checks one value and lets it override what earlier sources said.
    fn admit(&mut self, entry: Entry) {
        let Entry {
            key: name,
            value,
            source,
        } = entry;
        if let Some(key) = keys::find(&name) {
            match key.check(&value) {
                Ok(value) => {
                    let reads = !self.leaves_files;
                    match reads.then(|| told_to_all(key, &value, &source)).flatten() {
                        Some(words) => self.refuse(name, source, words),
                        None => self.take(key, value, source),
                    }
                }
                Err(message) => self.refuse(name, source, message),
            }
        } else if keys::in_section(&name).next().is_some() {
            self.refuse_section(&name, source);
        } else {
            let message = unknown(&name, &source);
            self.refuse(name, source, message);
        }
    }

    /// Takes a value that was checked; that of a key that names a file is read there.
    fn take(&mut self, key: &'static Key, value: Value, source: Source) {
        if let Some(content) = key.in_file()
            && let Some(path) = value.as_str()
        {
            if self.is_given(content, &source) && !self.is_given(key, &source) {
                return self.refuse_both(key, content, source);
            }
            let read = (!self.leaves_files).then(|| read_secret(Path::new(path)));
            match read.map(|read| read.and_then(|text| content.check(&Value::String(text)))) {
                None => {}
                Some(Ok(value)) => {
                    self.values.insert(content.name, (value, source.clone()));
                }
                Some(Err(message)) => {
                    let message = format!("{path}: {message}");
                    return self.refuse(key.name.to_owned(), source, message);
                }
            }
        }
        if let Some(file) = key.file_key() {
            if self.is_given(file, &source) {
                return self.refuse_both(key, file, source);
            }
            // An earlier source named a file, and this one overrides what was in there.
            self.values.remove(file.name);
        }
        self.values.insert(key.name, (value, source));
    }

    /// Whether a key was set by the same kind of source.
    fn is_given(&self, key: &Key, source: &Source) -> bool {
        let given = self.values.get(key.name);
        given.is_some_and(|(value, other)| {
            !value.is_null() && discriminant(other) == discriminant(source)
        })
    }

    /// The key that named the file which the value of this one was read from, and the file.
    fn file_with(&self, key: &str) -> Option<(&'static Key, &str)> {
        let key = keys::find(key)?.file_key()?;
        let (path, _) = self.values.get(key.name)?;
        Some((key, path.as_str()?))
    }

    fn refuse_both(&mut self, key: &Key, other: &Key, source: Source) {
        let words = format!(
            "`{}` is given as well: leave out one of the two",
            other.name
        );
        self.refuse(key.name.to_owned(), source, words);
    }

    fn refuse_section(&mut self, path: &str, source: Source) {
        let first = keys::in_section(path)
            .next()
            .map_or("wiring", |key| key.name);
        let path = if path.is_empty() { "(top level)" } else { path };
        let message = format!("this is a section, not a value; its keys are such as `{first}`");
        self.refuse(path.to_owned(), source, message);
    }

    fn refuse(&mut self, key: String, source: Source, message: String) {
        self.problems.push(Problem {
            key,
            source: Some(source),
            message,
        });
    }

    /// Puts the admitted values over the default file and checks how they fit together.
    fn finish(mut self, warnings: Vec<Warning>) -> Result<Loaded, LoadError> {
        let mut builder =
            Config::builder().add_source(File::from_str(DEFAULT_FILE, FileFormat::Yaml));
        for (key, (value, _)) in &self.values {
            let value: config::Value = serde_json::from_value(value.clone())
                .expect("a checked value is null, a switch, a number, a text or a list of texts");
            builder = builder
                .set_override(key, value)
                .expect("known keys are valid paths");
        }
        // A test gives every key its extreme values, so that a checked value always fits its type.
        let settings: Settings = builder
            .build()
            .and_then(Config::try_deserialize)
            .expect("the default file is complete and checked values fit their types");

        for mut problem in settings.check_relations() {
            let source = self.values.get(problem.key.as_str());
            let source = source.map_or(Source::Default, |(_, source)| source.clone());
            problem.source = Some(source);
            if let Some((key, path)) = self.file_with(&problem.key) {
                problem.message = format!("{path}: {}", problem.message);
                problem.key = key.name.to_owned();
            }
            self.problems.push(problem);
        }
        let sources: BTreeMap<_, _> = self
            .values
            .into_iter()
            .map(|(key, (_, source))| (key, source))
            .collect();
        if self.problems.is_empty() {
            Ok(Loaded {
                settings,
                warnings,
                sources,
            })
        } else {
            Err(Problems(self.problems).into())
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// The message for an unknown key; the suggestion is written the way the source writes keys.
fn unknown(name: &str, source: &Source) -> String {
    if let Some((_, instead)) = keys::GONE.iter().find(|(gone, _)| *gone == name) {
        return (*instead).to_owned();
    }
    let sections = KEYS
        .iter()
        .flat_map(|key| key.name.match_indices('.').map(|(at, _)| &key.name[..at]));
    // A section may be suggested for a file only: a variable or a flag sets one value.
    let near = match source {
        Source::File(_) => suggest::nearest(name, sections.chain(key_names())),
        _ => suggest::nearest(name, key_names()),
    };
    match (near, source) {
        (None, _) => "unknown key; docs/CONFIGURATION.md lists all".to_owned(),
        (Some(near), Source::Variable(_)) => {
            format!("unknown key; did you mean {}?", variable_of(near))
        }
        (Some(near), _) => format!("unknown key; did you mean `{near}`?"),
    }
}

fn key_names() -> impl Iterator<Item = &'static str> + Clone {
    KEYS.iter().map(|key| key.name)
}

/// The variable that sets a key.
fn variable_of(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))
}

/// A warning for a variable that begins like a setting but has not its two underscores.
fn suspicious(name: &str, upper: &str) -> Option<Warning> {
    let rest = upper.strip_prefix("ATTUNE_")?;
    if upper.starts_with(TEST_PREFIX) || OTHER_VARIABLES.contains(&upper) {
        return None;
    }
    // `EXECUTOR_QUEUE__MAX` and the like: compare without regard to dots and underscores.
    let flat = |text: &str| text.to_ascii_lowercase().replace(['.', '_'], "");
    let meant = KEYS.iter().find(|key| flat(key.name) == flat(rest));
    Some(Warning {
        variable: name.to_owned(),
        meant: meant.map(|key| variable_of(key.name)),
    })
}
