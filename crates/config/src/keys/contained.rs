//! Checks of the values by which a worker contains what it runs.

use attune_core::{Cpu, Size};
use serde_json::Value;

use super::{describe, is_name, unfit};

/// A name, which is looked up when the worker starts, or one or two numbers.
pub(super) fn check_account(value: &Value) -> Result<Value, String> {
    let text = match value {
        Value::Number(number) if number.is_u64() => number.to_string(),
        Value::String(text) => text.trim().to_owned(),
        _ => return Err(describe(value)),
    };
    let is_number = |text: &str| text.parse::<u32>().is_ok_and(|number| number < u32::MAX);
    let fits = match text.split_once(':') {
        Some((user, group)) => is_number(user) && is_number(group),
        None if text.starts_with(|first: char| first.is_ascii_digit()) => is_number(&text),
        None => (1..=64).contains(&text.len()) && text.bytes().all(is_name),
    };
    if fits {
        Ok(Value::from(text))
    } else {
        Err(unfit(&text))
    }
}

pub(super) fn check_size(value: &Value) -> Result<Value, String> {
    let size = match value {
        Value::Number(number) => Size::try_from(number.as_u64().ok_or_else(|| describe(value))?),
        Value::String(text) => text.trim().parse(),
        _ => return Err(describe(value)),
    };
    size.map(|size| Value::from(size.to_string()))
        .map_err(|_| describe(value))
}

pub(super) fn check_cpu(value: &Value) -> Result<Value, String> {
    let number = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number
        .and_then(|number| Cpu::try_from(number).ok())
        .map(|cpu| Value::from(cpu.count()))
        .ok_or_else(|| describe(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_account_is_a_name_or_numbers() {
        for good in [json!("attune-run"), json!(65534), json!("65534:65534")] {
            assert!(check_account(&good).is_ok(), "{good}");
        }
        for bad in [
            json!(""),
            json!("a b"),
            json!("1:"),
            json!("1x"),
            json!("4294967295"),
            json!([]),
        ] {
            assert!(check_account(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_and_shares_of_processors_are_read_from_texts_too() {
        assert_eq!(check_size(&json!("512Mi")), Ok(json!("512Mi")));
        assert_eq!(check_size(&json!(4096)), Ok(json!("4Ki")));
        assert_eq!(check_cpu(&json!("1.5")), Ok(json!(1.5)));
        for bad in [json!("12 parsecs"), json!(-1), json!(1.5), json!("0")] {
            assert!(check_size(&bad).is_err(), "{bad}");
        }
        assert!(check_cpu(&json!(0)).is_err());
    }
}
