//! What is wrong with a configuration, and where it was written.

use std::fmt;
use std::path::PathBuf;

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The default file inside the program.
    Default,
    /// A default that the command sets itself (`standalone` takes the embedded wiring).
    Command,
    /// A YAML file.
    File(PathBuf),
    /// A variable of the environment, named as it was found.
    Variable(String),
    /// A flag of the command.
    Flag,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Command => f.write_str("default of this command"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// One thing that is wrong: the key, where it was written, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The dotted key, such as `executor.queue.max_queue_length`.
    pub key: String,
    /// Where the value comes from; `None` when settings were made by code.
    pub source: Option<Source>,
    /// What is wrong and what would be right. Never holds a secret.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{} ({source}): {}", self.key, self.message),
            None => write!(f, "{}: {}", self.key, self.message),
        }
    }
}

/// Everything that is wrong with a configuration; at least one problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => write!(f, "the configuration has a problem: {one}"),
            all => {
                write!(f, "the configuration has {} problems:", all.len())?;
                all.iter()
                    .try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl std::error::Error for Problems {}

/// Why settings could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file given with `--config` cannot be read.
    #[error("cannot read the configuration file {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not YAML, or holds something else than keys and values.
    #[error("the configuration file {path} is not valid: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The parser's words, with line and column where it knows them.
        message: String,
    },
    /// Keys that are unknown, or values that are impossible.
    #[error(transparent)]
    Invalid(#[from] Problems),
}
