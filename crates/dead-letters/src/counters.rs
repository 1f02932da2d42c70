//! What a collector counts.

use attune_runtime::Label;

attune_runtime::counters! {
    /// What a collector of dead letters has done since it started.
    pub struct CollectorCounters {
        /// Letters received, duplicates among them.
        received: Counter = "dead_letters.received.total",
        /// Letters that the store has.
        kept: Counter = "dead_letters.kept.total",
        /// Letters that the store has, by the topic under which they could not be used.
        by_topic: Family = "dead_letters.total",
    }
}

/// The topics whose letters are told apart; those of partitions and pools count together.
const TOPICS: [&str; 8] = [
    "enforcement.created",
    "execution.completed",
    "execution.completed.kept",
    "partition.commands",
    "partition.calls",
    "partition.control",
    "partition.control.kept",
    "queue.stats",
];

impl CollectorCounters {
    /// Counts a letter by where it came from.
    pub(crate) fn count(&self, source: &str) {
        self.by_topic.add(1, &[Label::new("topic", topic(source))]);
    }

    /// Shows each topic from the start on, so that its first letter is a rise.
    pub(crate) fn begin(&self) {
        for topic in TOPICS.into_iter().chain(["(other)"]) {
            self.by_topic.add(0, &[Label::new("topic", topic)]);
        }
    }
}

/// Of what a letter says of its topic, what there are few of.
fn topic(source: &str) -> &'static str {
    let of_partition = source.strip_prefix("partition.");
    let kind = of_partition.and_then(|rest| rest.split_once('.'));
    let known = kind.map(|(_, kind)| format!("partition.{kind}"));
    let name = known.as_deref().unwrap_or(source);
    let place = TOPICS.iter().position(|topic| *topic == name);
    place.map_or("(other)", |place| TOPICS[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_few_topics_whatever_letters_say() {
        for (source, expected) in [
            ("enforcement.created", "enforcement.created"),
            ("partition.07.control.kept", "partition.control.kept"),
            ("partition.1023.calls", "partition.calls"),
            ("partition.x.evil", "(other)"),
            ("execution.requested.gpu", "(other)"),
            ("somebody-elses", "(other)"),
            ("unknown", "(other)"),
        ] {
            assert_eq!(topic(source), expected, "{source}");
        }
    }
}
