//! By what the slots of an action are shared, told once more in the plainest words: owners are judged by
//! this, and not by the rules that they decide by.

use attune_core::ActionPolicy;
use attune_core::policy::Fairness;

use crate::groups::{Group, Grouping, Words};
use crate::rng::Rng;

/// By what slots are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Shares {
    /// By nothing.
    #[default]
    None,
    /// By users.
    User,
    /// By a label.
    Label,
    /// By a label, and what each has of it by users.
    LabelUser,
    /// By users, and what each has by groups. Where there are none, by users alone.
    UserGroup,
}

/// Somebody who has a share, on one level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sharer {
    User(Option<u8>),
    Label(Option<u8>),
    Group(Group),
}

impl Sharer {
    /// What its share is worth: that of the first user is three, that of the first label two.
    pub(crate) fn weight(self) -> u64 {
        match self {
            Self::User(Some(1)) => 3,
            Self::Label(Some(1)) => 2,
            _ => 1,
        }
    }
}

impl Shares {
    pub(crate) const ALL: [Self; 5] = [
        Self::None,
        Self::User,
        Self::Label,
        Self::LabelUser,
        Self::UserGroup,
    ];

    /// Draws how slots are shared, if they are.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        rng.pick(&Self::ALL)
    }

    /// Writes it down as somebody would who wants it.
    pub(crate) fn write(self, policy: &mut ActionPolicy) {
        let has_groups = !policy.concurrency.group_by.is_empty();
        let by: &[&str] = match self {
            Self::None => &[],
            Self::Label => &["labels.g"],
            Self::LabelUser => &["labels.g", "user"],
            Self::UserGroup if has_groups => &["user", "group"],
            Self::User | Self::UserGroup => &["user"],
        };
        let weights = [("user", "user:user1", 3), ("labels.g", "labels.g:1", 2)];
        let weights = weights.into_iter().filter(|(level, ..)| by.contains(level));
        policy.fairness = (!by.is_empty()).then(|| Fairness {
            by: by
                .iter()
                .map(|it| it.parse().expect("it is a path"))
                .collect(),
            weights: weights
                .map(|(_, name, weight)| (name.to_owned(), weight))
                .collect(),
            default_weight: None,
        });
    }

    /// Whose turn an execution waits for, from the top.
    pub(crate) fn flow(self, grouping: Grouping, words: Words) -> Vec<Sharer> {
        let user = Sharer::User(words.user);
        let label = Sharer::Label(words.label);
        match self {
            Self::None => Vec::new(),
            Self::User => vec![user],
            Self::Label => vec![label],
            Self::LabelUser => vec![label, user],
            Self::UserGroup if grouping.by_user || grouping.by_label => {
                vec![user, Sharer::Group(grouping.group(words))]
            }
            Self::UserGroup => vec![user],
        }
    }
}
