//! Spans of time as numbers.

use std::time::Duration;

/// Whole milliseconds, as messages, rows and records hold a span of time; one that does not fit
/// is as long as can be told.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_stays_long() {
        assert_eq!(millis(Duration::from_micros(1_999)), 1);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
