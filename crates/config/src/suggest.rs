//! "Did you mean": the known key nearest to an unknown one.

use strsim::levenshtein;

/// The candidate that `unknown` was most likely meant to be, if one is near enough.
///
/// Compares the whole dotted key, and the last part alone, because the most common mistakes are
/// a slip of a letter and a key in the wrong section.
pub(crate) fn nearest<'a>(
    unknown: &str,
    candidates: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let unknown = unknown.to_ascii_lowercase().replace('-', "_");
    let last = last_part(&unknown);
    let (distance, near) = candidates
        .clone()
        .map(|candidate| (levenshtein(&unknown, candidate), candidate))
        .min_by_key(|(distance, _)| *distance)?;
    if distance <= allowed(&unknown) {
        return Some(near);
    }
    let mut same_name = candidates.filter(|candidate| last_part(candidate) == last);
    let found = same_name.next();
    // Several sections have a key of this name: naming one of them would mislead.
    if same_name.next().is_some() {
        None
    } else {
        found
    }
}

fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// How many edits a slip may have: two, and more in long keys.
fn allowed(key: &str) -> usize {
    (key.len() / 5).clamp(1, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_keys_are_suggested_and_far_ones_are_not() {
        let known = [
            "executor",
            "executor.queue.max_queue_length",
            "stats.retention_days",
            "history.retention_days",
        ];
        for (unknown, expected) in [
            ("executer", Some("executor")),
            ("Executor", Some("executor")),
            (
                "executor.queue.max_queue_lenght",
                Some("executor.queue.max_queue_length"),
            ),
            (
                "executor.queue.max-queue-length",
                Some("executor.queue.max_queue_length"),
            ),
            ("max_queue_length", Some("executor.queue.max_queue_length")),
            ("retention_days", None),
            ("colour", None),
        ] {
            assert_eq!(nearest(unknown, known.into_iter()), expected, "{unknown}");
        }
    }
}
