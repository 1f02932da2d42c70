//! The commit as it is run: only those parts of `sql/commit.sql` that a batch has.

use std::sync::OnceLock;

use crate::sql::COMMIT;

/// A part of the commit that not every batch has. What its lines say is there for it stands in
/// `sql/commit.sql` between `-- IF` and `-- END`, with its [mark](Self::mark).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It accepts executions.
    Accepts,
    /// Some that it accepts are parts of traces. Only with [`Accepts`](Self::Accepts).
    Traced,
    /// Some that it accepts end at once. Only with [`Accepts`](Self::Accepts).
    Instant,
    /// Something is counted for a limit.
    Meters,
    /// An operation goes on.
    Progress,
    /// Some that wait are given a slot.
    Grants,
    /// Others change: they start, lose their slot, or are marked.
    Changes,
    /// Some end.
    Ends,
    /// Totals of queues.
    Totals,
    /// Something of it may be there already.
    Again,
}

impl Part {
    /// All of them. Their parameters have this order, and follow those of every batch.
    pub const ALL: [Self; 10] = [
        Self::Accepts,
        Self::Traced,
        Self::Instant,
        Self::Meters,
        Self::Progress,
        Self::Grants,
        Self::Changes,
        Self::Ends,
        Self::Totals,
        Self::Again,
    ];

    fn mark(self) -> &'static str {
        match self {
            Self::Accepts => "accepts",
            Self::Traced => "traced",
            Self::Instant => "instant",
            Self::Meters => "meters",
            Self::Progress => "progress",
            Self::Grants => "grants",
            Self::Changes => "changes",
            Self::Ends => "ends",
            Self::Totals => "totals",
            Self::Again => "again",
        }
    }

    /// The names of its parameters, in their order.
    fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Accepts => &[
                "new_ids",
                "new_actions",
                "new_request_ids",
                "new_digests",
                "new_attempts",
                "new_grant_numbers",
                "new_priorities",
                "new_refs",
                "new_parameters",
                "new_enforcement_ids",
                "new_requested_by",
                "new_groups",
                "new_labels",
                "new_not_before",
                "new_timeouts",
                "new_requeue_of",
                "new_statuses",
                "new_demands",
                "new_askers",
                "new_cancels",
                "new_workers",
            ],
            Self::Traced => &["new_traceparents"],
            Self::Instant => &[
                "instant_ids",
                "instant_actions",
                "instant_request_ids",
                "instant_digests",
                "instant_attempts",
                "instant_grant_numbers",
                "instant_priorities",
                "instant_refs",
                "instant_parameters",
                "instant_enforcement_ids",
                "instant_requested_by",
                "instant_groups",
                "instant_labels",
                "instant_not_before",
                "instant_timeouts",
                "instant_requeue_of",
                "instant_traceparents",
                "instant_statuses",
                "instant_exit_codes",
                "instant_end_codes",
                "instant_results",
                "instant_errors",
                "instant_stdouts",
                "instant_stderrs",
            ],
            Self::Meters => &[
                "meter_partitions",
                "meter_limits",
                "meter_keys",
                "meter_states",
                "meter_expires",
            ],
            Self::Progress => &[
                "progress_operations",
                "progress_partitions",
                "progress_upto",
                "progress_cursors",
                "progress_matched",
                "progress_done",
                "progress_skipped",
                "progress_states",
            ],
            Self::Grants => &[
                "bytes",
                "grant_ids",
                "grant_attempts",
                "grant_numbers",
                "grant_cancels",
                "grant_workers",
                "grant_aheads",
            ],
            Self::Changes => &[
                "change_ids",
                "change_attempts",
                "change_takes_back",
                "change_cancels",
                "change_starts",
            ],
            Self::Ends => &[
                "end_ids",
                "end_statuses",
                "end_exit_codes",
                "end_codes",
                "end_results",
                "end_errors",
                "end_stdouts",
                "end_stderrs",
                "end_began",
            ],
            Self::Totals => &[
                "total_actions",
                "total_enqueued",
                "total_completed",
                "total_cancelled",
                "total_expired",
            ],
            Self::Again => &[],
        }
    }
}

/// The parameters of every batch.
const ALWAYS: [&str; 3] = ["owner", "partitions", "epochs"];

/// Which parts a batch has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommitOf(u16);

impl CommitOf {
    /// Of these parts.
    pub fn parts(parts: impl IntoIterator<Item = Part>) -> Self {
        Self(
            parts
                .into_iter()
                .fold(0, |all, part| all | 1 << part as u16),
        )
    }

    /// Whether it has this part.
    pub fn has(self, part: Part) -> bool {
        self.0 & 1 << part as u16 != 0
    }

    /// Whether it writes when something was: `at`, a parameter after those of every batch.
    pub(crate) fn has_time(self) -> bool {
        let with_time = [Part::Accepts, Part::Grants, Part::Ends];
        with_time.into_iter().any(|part| self.has(part))
    }

    /// The names of its parameters, from the first.
    fn parameters(self) -> Vec<&'static str> {
        let parts = Part::ALL.into_iter().filter(|part| self.has(*part));
        let theirs = parts.flat_map(|part| part.parameters().iter().copied());
        let time = self.has_time().then_some("at");
        ALWAYS.into_iter().chain(time).chain(theirs).collect()
    }
}

/// The texts that were asked for, by the bits of [`CommitOf`].
static TEXTS: [OnceLock<String>; 1 << Part::ALL.len()] =
    [const { OnceLock::new() }; 1 << Part::ALL.len()];

/// The commit for a batch with these parts.
pub fn commit(of: CommitOf) -> &'static str {
    TEXTS[usize::from(of.0)].get_or_init(|| numbered(&text(of), &of.parameters()))
}

/// The lines of these parts, without those that are comments: the driver looks a statement up by its
/// text, every time.
fn text(of: CommitOf) -> String {
    let has = |mark: &str| {
        Part::ALL
            .iter()
            .any(|part| part.mark() == mark && of.has(*part))
    };
    let mut without = None;
    let mut lines = Vec::new();
    for line in COMMIT.lines() {
        let bare = line.trim_start();
        if let Some(mark) = bare.strip_prefix("-- IF ") {
            if without.is_none() && !has(mark) {
                without = Some(mark);
            }
        } else if let Some(mark) = bare.strip_prefix("-- END ") {
            without = without.filter(|of| *of != mark);
        } else if without.is_some() {
        } else if let Some(again) = bare.strip_prefix("-- AGAIN: ") {
            lines.extend(of.has(Part::Again).then_some(again));
        } else if !bare.starts_with("--") {
            lines.push(line);
        }
    }
    lines.join("\n")
}

/// A text in which each parameter has its number in place of its name.
fn numbered(text: &str, names: &[&str]) -> String {
    let mut pieces = text.split('$');
    let mut numbered = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find("::").unwrap_or(piece.len());
        let (name, rest) = piece.split_at(end);
        numbered.push('$');
        match names.iter().position(|it| *it == name) {
            Some(place) => numbered.push_str(&(place + 1).to_string()),
            None => numbered.push_str(name),
        }
        numbered.push_str(rest);
    }
    numbered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bits: u16) -> Vec<Part> {
        let parts = Part::ALL.into_iter();
        parts.filter(|part| CommitOf(bits).has(*part)).collect()
    }

    #[test]
    fn what_a_batch_does_not_have_is_left_out_whole() {
        for bits in 0..1 << Part::ALL.len() {
            let of = CommitOf::parts(all(bits));
            assert_eq!(of, CommitOf(bits));
            let accepts = of.has(Part::Accepts);
            if !accepts && (of.has(Part::Instant) || of.has(Part::Traced)) {
                continue;
            }
            let text = commit(of);
            assert!(!text.contains("--"), "{text}");
            let count = of.parameters().len();
            for number in 1..=count + 1 {
                let is_there = text.contains(&format!("${number}::"));
                assert_eq!(is_there, number <= count, "${number} in {text}");
            }
            let named = text.split('$').skip(1);
            let mut named = named.filter(|it| !it.starts_with(|it: char| it.is_ascii_digit()));
            assert_eq!(named.next(), None, "{text}");
            let inserts = [
                (Part::Accepts, 2),
                (Part::Instant, 1),
                (Part::Meters, 1),
                (Part::Ends, 1),
                (Part::Totals, 1),
            ];
            let inserts = inserts.iter().filter(|(part, _)| of.has(*part));
            let inserts: usize = inserts.map(|(_, count)| count).sum();
            assert_eq!(text.matches("INSERT INTO").count(), inserts, "{text}");
            let again = [(Part::Accepts, 2), (Part::Totals, 1)];
            let again = again
                .iter()
                .filter(|(part, _)| of.has(*part) && of.has(Part::Again));
            let conflicts: usize = again.map(|(_, count)| count).sum();
            let conflicts = conflicts + usize::from(of.has(Part::Meters));
            assert_eq!(text.matches("ON CONFLICT").count(), conflicts, "{text}");
        }
    }
}
