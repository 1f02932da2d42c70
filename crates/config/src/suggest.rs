//! "Did you mean": the known key nearest to an unknown one.

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
        .map(|candidate| (distance(&unknown, candidate), candidate))
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

/// The Levenshtein distance, in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (a, b, edits) in [
            ("", "", 0),
            ("a", "", 1),
            ("kitten", "sitting", 3),
            ("ab", "ab", 0),
        ] {
            assert_eq!(distance(a, b), edits, "{a} {b}");
            assert_eq!(distance(b, a), edits, "{b} {a}");
        }
    }

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
