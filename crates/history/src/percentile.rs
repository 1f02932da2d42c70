//! Percentiles of measured values.

/// The smallest of the values that at least the share `q` of them does not exceed (nearest
/// rank, always one of the values): `q` is 0.5 for the median, 0.99 for the 99th percentile.
/// `None` without values. They need not be sorted.
///
/// # Panics
/// When `q` is not from 0 to 1.
pub fn percentile(values: &[i64], q: f64) -> Option<i64> {
    assert!((0.0..=1.0).contains(&q), "a share is from 0 to 1, not {q}");
    if values.is_empty() {
        return None;
    }
    // Of values beyond 2^53 the rank would be inexact; nobody measures so many.
    let rank = (q * values.len() as f64).ceil() as usize;
    let index = rank.clamp(1, values.len()) - 1;
    let mut values = values.to_vec();
    let (_, value, _) = values.select_nth_unstable(index);
    Some(*value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_nearest_rank() {
        let hundred: Vec<i64> = (1..=100).rev().collect();
        for (q, expected) in [
            (0.0, 1),
            (0.5, 50),
            (0.95, 95),
            (0.99, 99),
            (0.991, 100),
            (1.0, 100),
        ] {
            assert_eq!(percentile(&hundred, q), Some(expected), "{q}");
        }
        assert_eq!(percentile(&[30, 10, 20], 0.5), Some(20));
        assert_eq!(percentile(&[20, 10], 0.5), Some(10));
        assert_eq!(percentile(&[7], 0.99), Some(7));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    #[should_panic(expected = "a share is from 0 to 1, not 99")]
    fn a_percentage_is_not_a_share() {
        percentile(&[1], 99.0);
    }
}
