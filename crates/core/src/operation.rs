//! Bulk operations: one thing that is done to every execution that a filter names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::action::ActionRef;
use crate::ids::{ActionId, ExecutionId, PartitionId, Seq};
use crate::input;
use crate::pause::PauseTarget;
use crate::priority::Priority;
use crate::reject::Reject;

/// One bulk operation, numbered by the store in the order in which they were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationId(pub i64);

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OperationKind {
    /// Ends everything that waits in whole queues.
    Clear,
    /// Ends what waits, and has what runs ended as well where that is wanted.
    Cancel {
        /// Whether those that hold a slot are asked to end, too.
        #[serde(default)]
        include_running: bool,
    },
    /// Gives what waits another priority. It stands there by its age.
    Reprioritise {
        /// Which.
        priority: Priority,
    },
    /// Lets what waits go before all others of its action, in the order of their acceptance.
    MoveToFront,
}

impl OperationKind {
    /// Its name in the store, in records and for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Cancel { .. } => "cancel",
            Self::Reprioritise { .. } => "reprioritise",
            Self::MoveToFront => "move_to_front",
        }
    }

    /// Whether it ends what it is about.
    pub fn ends(self) -> bool {
        matches!(self, Self::Clear | Self::Cancel { .. })
    }

    /// Whether those that hold a slot are meant as well.
    pub fn includes_running(self) -> bool {
        matches!(
            self,
            Self::Cancel {
                include_running: true
            }
        )
    }
}

/// Which executions an operation is about: those that everything here applies to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OperationFilter {
    /// Those of this action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<ActionRef>,
    /// Those of the actions of this pack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// Those of this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Those that have all of these labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Those that have this priority when the operation comes to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// These.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub ids: BTreeSet<ExecutionId>,
    /// All; said by itself, so that nobody means everything by leaving something out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// What of an execution a filter must be told beside its action and its priority.
#[derive(Debug, Clone, Copy)]
pub struct OperationWords<'a> {
    /// The user for whom it runs.
    pub user: Option<&'a str>,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
}

impl OperationFilter {
    /// How many executions may be named one by one.
    pub const MAX_IDS: usize = 1_000;

    /// Refuses what names nothing, or contradicts itself, with the path of the field.
    ///
    /// # Errors
    /// [`RejectCode::Invalid`](crate::RejectCode) with the field.
    pub fn check(&self, kind: OperationKind) -> Result<(), Reject> {
        let wrong =
            |field: &str, words: String| Err(Reject::field(format!("filter.{field}"), words));
        if let Some(pack) = &self.pack {
            PauseTarget::of("pack", pack)
                .or_else(|(_, words)| wrong("pack", words).map(|()| PauseTarget::All))?;
            if self.action.is_some() {
                let words = "name an action or a pack, not both: an action is in one pack";
                return wrong("pack", words.to_owned());
            }
        }
        if let Some(user) = &self.user {
            input::check_text("filter.user", user)?;
        }
        if self.labels.len() > input::MAX_LABELS {
            let words = format!("an execution has {} labels at most", input::MAX_LABELS);
            return wrong("labels", words);
        }
        for (name, value) in &self.labels {
            input::check_required_text("filter.labels", name)?;
            input::check_text(&format!("filter.labels.{name}"), value)?;
        }
        if self.ids.len() > Self::MAX_IDS {
            let words = format!(
                "{} executions are named, and {} may be: use a label or a user, or several operations",
                self.ids.len(),
                Self::MAX_IDS
            );
            return wrong("ids", words);
        }
        if let Some(id) = self.ids.iter().find(|id| id.0 <= 0) {
            return wrong(
                "ids",
                format!("{id} is no execution: their ids are positive"),
            );
        }
        if kind == OperationKind::Clear {
            let narrow = [
                ("user", self.user.is_some()),
                ("labels", !self.labels.is_empty()),
                ("priority", self.priority.is_some()),
                ("ids", !self.ids.is_empty()),
            ];
            if let Some((field, _)) = narrow.into_iter().find(|(_, is_said)| *is_said) {
                let words = "`clear` ends all that waits in whole queues, by action, pack or all: \
                             use `cancel` for some of it";
                return wrong(field, words.to_owned());
            }
        }
        let names_some = Self {
            all: false,
            ..self.clone()
        } != Self::default();
        match (self.all, names_some) {
            (true, true) => wrong(
                "all",
                "`all` means every execution: leave it out, or everything else".to_owned(),
            ),
            (false, false) => Err(Reject::field(
                "filter",
                "it names nothing: say action, pack, user, labels, priority or ids, or `all: true` for \
                 every execution",
            )),
            _ => Ok(()),
        }
    }

    /// Whether executions of an action can be meant.
    pub fn covers(&self, action_ref: &ActionRef) -> bool {
        self.action
            .as_ref()
            .is_none_or(|action| action == action_ref)
            && self
                .pack
                .as_ref()
                .is_none_or(|pack| pack == action_ref.pack())
    }

    /// Whether an execution of a priority can be meant.
    pub fn admits(&self, id: ExecutionId, priority: Priority) -> bool {
        self.priority.is_none_or(|wanted| wanted == priority)
            && (self.ids.is_empty() || self.ids.contains(&id))
    }

    /// Whether it must be told more of an execution than its action, its priority and its id.
    pub fn needs_words(&self) -> bool {
        self.user.is_some() || !self.labels.is_empty()
    }

    /// Whether what an execution says is meant.
    pub fn matches(&self, words: OperationWords<'_>) -> bool {
        let mut labels = self.labels.iter();
        self.user
            .as_deref()
            .is_none_or(|user| words.user == Some(user))
            && labels.all(|(name, value)| words.labels.get(name) == Some(value))
    }

    /// In which partitions there can be executions that are meant.
    pub fn partitions(&self, count: u16) -> Vec<PartitionId> {
        let of_ids: BTreeSet<PartitionId> = self.ids.iter().map(|id| id.partition()).collect();
        let all = (0..count).map(PartitionId);
        all.filter(|partition| self.ids.is_empty() || of_ids.contains(partition))
            .filter(|partition| {
                let action = self.action.as_ref();
                action.is_none_or(|it| PartitionId::of(it.as_str(), count) == *partition)
            })
            .collect()
    }
}

impl fmt::Display for OperationFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        parts.extend(self.all.then(|| "all".to_owned()));
        parts.extend(self.action.as_ref().map(|it| format!("action {it}")));
        parts.extend(self.pack.as_ref().map(|it| format!("pack {it}")));
        parts.extend(self.user.as_ref().map(|it| format!("user {it}")));
        let labels = self.labels.iter();
        parts.extend(labels.map(|(name, value)| format!("label {name}={value}")));
        parts.extend(self.priority.map(|it| format!("priority {it}")));
        match self.ids.len() {
            0 => {}
            1..=3 => {
                let ids: Vec<String> = self.ids.iter().map(ToString::to_string).collect();
                parts.push(format!("ids {}", ids.join(", ")));
            }
            many => parts.push(format!("{many} ids")),
        }
        f.write_str(&parts.join(", "))
    }
}

/// A bulk operation, as owners carry it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Which one.
    pub id: OperationId,
    /// What it does.
    pub kind: OperationKind,
    /// To which executions.
    pub filter: OperationFilter,
}

/// How far an operation is in one partition, exactly: written in the commits that do what it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OperationProgress {
    /// It is about nothing behind this place, the newest when it began there; absent before.
    pub upto: Option<Seq>,
    /// Everything up to this place was dealt with.
    pub cursor: Option<Seq>,
    /// How many executions it was about were found.
    pub matched: u64,
    /// To how many of these it was done.
    pub done: u64,
    /// How many of these waited no longer, or were so already.
    pub skipped: u64,
    /// Whether it is over in this partition.
    pub finished: bool,
}

/// An operation in one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartOfOperation {
    /// Which operation.
    pub operation: Operation,
    /// Where.
    pub partition: PartitionId,
    /// How far it is there.
    pub progress: OperationProgress,
}

/// Where an execution stands that was moved by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Which one.
    pub id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// Its priority from now on.
    pub priority: Priority,
    /// Whether it goes before all others of its action.
    pub front: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(filter: &OperationFilter, kind: OperationKind) -> Option<String> {
        filter.check(kind).unwrap_err().field
    }

    fn read(text: &str) -> OperationFilter {
        serde_json::from_str(text).unwrap()
    }

    const CANCEL: OperationKind = OperationKind::Cancel {
        include_running: false,
    };

    #[test]
    fn a_filter_that_names_nothing_or_contradicts_itself_is_refused_with_the_field() {
        let wrong = [
            ("{}", "filter"),
            (r#"{"all": true, "user": "ann"}"#, "filter.all"),
            (r#"{"pack": "Core"}"#, "filter.pack"),
            (r#"{"pack": "core", "action": "core.echo"}"#, "filter.pack"),
            (r#"{"user": ""}"#, "filter.user"),
            (r#"{"ids": [0]}"#, "filter.ids"),
        ];
        for (text, expected) in wrong {
            assert_eq!(
                field(&read(text), CANCEL).as_deref(),
                Some(expected),
                "{text}"
            );
        }
        let many = OperationFilter {
            ids: (1..=1_001).map(ExecutionId).collect(),
            ..OperationFilter::default()
        };
        assert_eq!(field(&many, CANCEL).as_deref(), Some("filter.ids"));
        let narrow = read(r#"{"action": "core.echo", "labels": {"a": "b"}}"#);
        assert_eq!(
            field(&narrow, OperationKind::Clear).as_deref(),
            Some("filter.labels")
        );
        for right in [
            r#"{"all": true}"#,
            r#"{"priority": "low"}"#,
            r#"{"ids": [7, 8]}"#,
        ] {
            assert_eq!(read(right).check(CANCEL), Ok(()), "{right}");
        }
    }

    #[test]
    fn a_filter_is_about_what_everything_in_it_applies_to() {
        let filter =
            read(r#"{"pack": "core", "user": "ann", "labels": {"a": "1"}, "priority": "low"}"#);
        assert!(filter.covers(&"core.echo".parse().unwrap()));
        assert!(!filter.covers(&"corex.echo".parse().unwrap()));
        assert!(filter.admits(ExecutionId(7), Priority::Low));
        assert!(!filter.admits(ExecutionId(7), Priority::High));
        let labels = |value: &str| BTreeMap::from([("a".to_owned(), value.to_owned())]);
        let says = |user, labels: &BTreeMap<String, String>| {
            filter.matches(OperationWords { user, labels })
        };
        assert!(says(Some("ann"), &labels("1")));
        assert!(!says(Some("ann"), &labels("2")));
        assert!(!says(None, &labels("1")));
        assert!(!says(Some("ann"), &BTreeMap::new()));
    }

    #[test]
    fn only_partitions_that_can_hold_something_are_concerned() {
        let action: ActionRef = "core.echo".parse().unwrap();
        let of_action = OperationFilter {
            action: Some(action.clone()),
            ..OperationFilter::default()
        };
        assert_eq!(
            of_action.partitions(16),
            [PartitionId::of(action.as_str(), 16)]
        );
        let ids = OperationFilter {
            ids: [ExecutionId(256 + 3), ExecutionId(512 + 3)].into(),
            ..OperationFilter::default()
        };
        assert_eq!(ids.partitions(16), [PartitionId(3)]);
        assert_eq!(read(r#"{"all": true}"#).partitions(4).len(), 4);
    }
}
