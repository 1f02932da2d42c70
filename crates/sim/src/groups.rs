//! By what the executions of an action are grouped and what each takes of its limits, told once more in
//! the plainest words: owners are judged by this, and not by the rules that they decide by.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use attune_core::policy::{Cost, PriorityRule, Test};
use attune_core::{
    ActionPolicy, ActionSpec, Asker, Builtin, DemandRule, Priority, RequestId, Run, Submission,
    WaitBound,
};

use crate::rates::Starts;
use crate::rng::Rng;
use crate::shares::Shares;

/// By what executions of an action are grouped, and whether some take more than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Grouping {
    /// By their user.
    pub by_user: bool,
    /// By a label.
    pub by_label: bool,
    /// The most that one may take, where they say what they take.
    pub most: Option<u16>,
    /// Whether it is counted how many a user has.
    pub counts_users: bool,
    /// By what slots are shared.
    pub shares: Shares,
}

impl Grouping {
    /// Draws one, and the limit of each group.
    pub(crate) fn draw(rng: &mut Rng, limit: Option<u32>) -> (Self, Option<u32>) {
        let (by_user, by_label) = rng.pick(&[
            (false, false),
            (true, false),
            (false, true),
            (true, true),
            (true, false),
        ]);
        let limits = [1, 1, 2, 3].map(|it: u32| it.min(limit.unwrap_or(it)));
        let group_limit = (by_user || by_label).then(|| rng.pick(&limits));
        let least = group_limit.or(limit).unwrap_or(0);
        let most = rng.chance(300).then(|| least.min(3));
        let most = most.and_then(|most| u16::try_from(most).ok());
        let grouping = Self {
            by_user,
            by_label,
            most: most.filter(|most| *most > 1),
            counts_users: false,
            shares: Shares::None,
        };
        (grouping, group_limit)
    }

    /// Writes it down as somebody would who wants it.
    pub(crate) fn write(self, policy: &mut ActionPolicy, group_limit: Option<u32>) {
        let mut paths = Vec::new();
        if self.by_user {
            paths.push("user");
        }
        if self.by_label {
            paths.push("labels.g");
        }
        let path = |text: &str| text.parse().expect("it is a path");
        let concurrency = &mut policy.concurrency;
        concurrency.group_by = paths.into_iter().map(path).collect();
        concurrency.group_limit = group_limit.filter(|_| self.by_user || self.by_label);
        concurrency.cost = self.most.map(|max| Cost {
            path: path("labels.c"),
            default: 1,
            max,
        });
        self.shares.write(policy);
    }

    /// The grouping of a rule; nothing of none.
    pub(crate) fn of(mark: Option<i64>) -> Self {
        static KNOWN: LazyLock<BTreeMap<i64, Grouping>> = LazyLock::new(known);
        mark.and_then(|mark| KNOWN.get(&mark).copied())
            .unwrap_or_default()
    }

    /// In which group an execution is.
    pub(crate) fn group(self, words: Words) -> Group {
        (
            words.user.filter(|_| self.by_user),
            words.label.filter(|_| self.by_label),
        )
    }

    /// What it takes.
    pub(crate) fn cost(self, words: Words) -> u64 {
        match self.most {
            // Who asked for more than that asked before, and takes all that one may.
            Some(most) => u64::from(words.cost.min(most)),
            None => 1,
        }
    }
}

/// A user and a label, as far as they matter.
pub(crate) type Group = (Option<u8>, Option<u8>);

/// Every grouping that there is, by the mark of its rule.
fn known() -> BTreeMap<i64, Grouping> {
    let mut known = BTreeMap::new();
    for by_user in [false, true] {
        for by_label in [false, true] {
            for most in [None, Some(2), Some(3)] {
                let users = [false, true].into_iter();
                let all = users.flat_map(|it| Shares::ALL.map(|shares| (it, shares)));
                for (counts_users, shares) in all {
                    let grouping = Grouping {
                        by_user,
                        by_label,
                        most,
                        counts_users,
                        shares,
                    };
                    let action_ref = "core.noop".parse().expect("it is a ref");
                    let mut spec = ActionSpec::new(action_ref, Run::Builtin(Builtin::Noop));
                    grouping.write(&mut spec.policy, Some(3));
                    spec.policy.per_user_limit = counts_users.then_some(1);
                    // Whose starts are counted for each user demand by another rule.
                    for by_user in [false, true] {
                        let rated = Starts {
                            rate: by_user.then_some((1, 1)),
                            by_user,
                            ..Starts::default()
                        };
                        rated.write(&mut spec.policy);
                        if let Some(rule) = DemandRule::of(&spec) {
                            known.insert(rule.mark(), grouping);
                        }
                    }
                }
            }
        }
    }
    known
}

/// What a submission says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Words {
    pub(crate) user: Option<u8>,
    pub(crate) label: Option<u8>,
    cost: u16,
    /// It asks for no priority.
    pub(crate) is_modest: bool,
    /// How many of whoever asks may wait, where that is bounded. A rule firing says nothing of it.
    pub(crate) wait_bound: Option<WaitBound>,
}

impl Words {
    /// What the submission under this request id says, whoever sends it and however often.
    pub(crate) fn of(request: RequestId) -> Self {
        let bytes = request.0.as_bytes();
        let half = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap_or_default());
        let mut rng = Rng::new(half(&bytes[..8]) ^ half(&bytes[8..]));
        let mut some = |many: i64| {
            let drawn = u8::try_from(rng.between(0, many)).unwrap_or(0);
            // Some say nothing, and are in a group together.
            (drawn > 0).then_some(drawn)
        };
        Self {
            user: some(3),
            label: some(2),
            cost: some(3).map_or(1, u16::from),
            is_modest: some(1).is_some(),
            wait_bound: some(7).filter(|drawn| *drawn <= 2).map(|drawn| WaitBound {
                asker: Asker(drawn.into()),
                max_waiting: drawn.into(),
            }),
        }
    }

    /// For whom.
    pub(crate) fn user(self) -> Option<u8> {
        self.user
    }

    /// Its user and its label, as they are written.
    pub(crate) fn said(self) -> (Option<String>, Option<String>) {
        let user = self.user.map(|user| format!("user{user}"));
        (user, self.label.map(|label| label.to_string()))
    }

    /// Says it.
    pub(crate) fn write(self, submission: &mut Submission) {
        let (user, label) = self.said();
        submission.requested_by = user;
        let labels = [
            ("g", label),
            ("c", (self.cost > 1).then(|| self.cost.to_string())),
        ];
        let labels = labels.into_iter();
        submission.labels = labels
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect();
    }
}

/// Which priorities executions of an action have, told once more in the plainest words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ranks {
    /// Of those that ask for none.
    pub default: Option<Priority>,
    /// The highest.
    pub max: Option<Priority>,
    /// Of those with this label that ask for none.
    pub of_label: Option<(u8, Priority)>,
}

impl Ranks {
    /// Draws them.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let mut some = |per_mille| rng.chance(per_mille).then(|| rng.pick(&Priority::ALL));
        let (max, default, then) = (some(300), some(300), some(400));
        let lowered = |it: Priority| max.map_or(it, |max| it.max(max));
        Self {
            default: default.map(lowered),
            max,
            of_label: then.map(|then| (1, lowered(then))),
        }
    }

    /// Writes them down.
    pub(crate) fn write(self, policy: &mut ActionPolicy) {
        let priority = &mut policy.priority;
        (priority.default, priority.max) = (self.default, self.max);
        let rule = self.of_label.map(|(label, then)| PriorityRule {
            when: [("labels.g".parse().expect("it is a path"), label.to_string())]
                .map(|(path, label)| (path, Test::Equals(label.into())))
                .into(),
            then,
        });
        priority.rules = rule.into_iter().collect();
    }

    /// The priority of somebody who asks for this one.
    pub(crate) fn of(self, asked: Option<Priority>, words: Words) -> Priority {
        let of_label = self
            .of_label
            .filter(|(label, _)| words.label == Some(*label));
        let wanted = match (asked, of_label, self.default) {
            (Some(asked), ..) => asked,
            (None, Some((_, then)), _) => then,
            (None, None, default) => default.unwrap_or(Priority::Normal),
        };
        match self.max {
            Some(max) if max.rank() > wanted.rank() => max,
            _ => wanted,
        }
    }
}
