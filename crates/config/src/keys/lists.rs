//! Checks of lists.

use attune_core::Subnet;
use serde_json::Value;

use super::{describe, unfit};

/// Takes a list, or a text with commas between its items.
pub(super) fn check_list(
    value: &Value,
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<Value, String> {
    let items: Vec<&str> = match value {
        Value::String(text) => text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .collect(),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().ok_or_else(|| describe(item)))
            .collect::<Result<_, _>>()?,
        _ => return Err(describe(value)),
    };
    items.iter().try_for_each(|item| check(item))?;
    Ok(Value::from(items))
}

pub(super) fn check_variable_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.contains(['=', '\0', ' ']) {
        return Err(unfit(name));
    }
    Ok(())
}

pub(super) fn check_user(name: &str) -> Result<(), String> {
    match name.is_empty() || name.len() > 255 || name.contains('\0') {
        true => Err(unfit(name)),
        false => Ok(()),
    }
}

pub(super) fn check_subnet(text: &str) -> Result<(), String> {
    text.parse::<Subnet>()
        .map(drop)
        .map_err(|error| error.to_string())
}

/// Whether an item fits, as [`check_list`] wants it.
pub(super) fn fitting(item: &str, fits: bool) -> Result<(), String> {
    match fits {
        true => Ok(()),
        false => Err(unfit(item)),
    }
}
