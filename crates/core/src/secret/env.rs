//! The values of variables that programs see.

use serde::{Deserialize, Serialize};

/// The longest name of a secret, in bytes.
pub const MAX_SECRET_NAME: usize = 64;

/// The value of a variable of an action.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text, or {secret: NAME} for what the worker has under a name"
)]
pub enum EnvValue {
    /// As it stands in the action.
    Plain(String),
    /// What the worker has under a name; it stands nowhere else.
    Secret(NamedSecret),
}

/// Names what a worker has.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedSecret {
    /// Its name.
    pub secret: String,
}

impl EnvValue {
    /// The secret of this name.
    pub fn secret(name: impl Into<String>) -> Self {
        Self::Secret(NamedSecret {
            secret: name.into(),
        })
    }

    /// The value, if it stands in the action.
    #[must_use]
    pub fn plain(&self) -> Option<&str> {
        match self {
            Self::Plain(text) => Some(text),
            Self::Secret(_) => None,
        }
    }

    /// The name of the secret, if it is one.
    #[must_use]
    pub fn secret_name(&self) -> Option<&str> {
        match self {
            Self::Plain(_) => None,
            Self::Secret(named) => Some(&named.secret),
        }
    }

    /// How many bytes its text takes.
    #[must_use]
    pub fn text_len(&self) -> usize {
        match self {
            Self::Plain(text) => text.len(),
            Self::Secret(named) => named.secret.len(),
        }
    }
}

impl From<String> for EnvValue {
    fn from(text: String) -> Self {
        Self::Plain(text)
    }
}

impl From<&str> for EnvValue {
    fn from(text: &str) -> Self {
        Self::Plain(text.to_owned())
    }
}

/// Checks the name of a secret: it is the name of a file on workers.
///
/// # Errors
/// Words that say what is wrong and what would be right.
pub fn check_secret_name(name: &str) -> Result<(), String> {
    let fits = (1..=MAX_SECRET_NAME).contains(&name.len())
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
    if fits {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_SECRET_NAME).collect();
    Err(format!(
        "{shown:?} is no name of a secret; it has letters, digits, `_`, `-` and dots, no dot first, at most \
         {MAX_SECRET_NAME} bytes"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_a_text_or_names_a_secret() {
        for (text, value) in [
            (r#""x""#, EnvValue::from("x")),
            (
                r#"{"secret":"db.password"}"#,
                EnvValue::secret("db.password"),
            ),
        ] {
            assert_eq!(serde_json::from_str::<EnvValue>(text).unwrap(), value);
            assert_eq!(serde_json::to_string(&value).unwrap(), text);
        }
        for wrong in ["1", "{}", r#"{"secret":1}"#, r#"{"secret":"a","b":1}"#] {
            let error = serde_json::from_str::<EnvValue>(wrong).unwrap_err();
            assert!(error.to_string().contains("{secret: NAME}"), "{error}");
        }
    }

    #[test]
    fn a_name_leads_to_no_other_folder() {
        for right in ["a", "db-password", "A.b_c", &"x".repeat(64)] {
            assert_eq!(check_secret_name(right), Ok(()));
        }
        for wrong in [
            "",
            ".a",
            "..",
            "a/b",
            "../x",
            "a b",
            "ä",
            "a\0",
            &"x".repeat(65),
        ] {
            assert!(check_secret_name(wrong).is_err(), "{wrong:?}");
        }
    }
}
