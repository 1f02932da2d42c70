//! Optional fields that have no value.

use serde::{Deserialize, Deserializer};

/// Reads an optional field: `null` means the same as leaving it out. For `deserialize_with`, beside `default`.
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Report {
///     #[serde(default, deserialize_with = "attune_core::or_null")]
///     started: Vec<i64>,
/// }
///
/// let read = |text| serde_json::from_str(text).map(|Report { started }| started);
/// assert!(read(r#"{"started": null}"#).expect("null").is_empty());
/// assert_eq!(read(r#"{"started": [7]}"#).expect("a list"), [7]);
/// assert!(read(r#"{"started": [null]}"#).is_err());
/// ```
///
/// # Errors
/// When a value is there, and another one than the field can have.
pub fn or_null<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(from).map(Option::unwrap_or_default)
}
