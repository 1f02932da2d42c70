//! Which queues operators hold, and how.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::action::ActionRef;

/// How a queue is held. The stronger one counts when several apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    /// Executions are accepted, and nobody is given a slot.
    Pause,
    /// Nobody is given a slot, and no execution is accepted.
    Drain,
}

impl PauseMode {
    /// Its name on the wire and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Drain => "drain",
        }
    }
}

impl fmt::Display for PauseMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for PauseMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "pause" => Ok(Self::Pause),
            "drain" => Ok(Self::Drain),
            _ => Err("there are pause and drain".to_owned()),
        }
    }
}

/// What a pause holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PauseTarget {
    /// Every action.
    All,
    /// Every action of a pack.
    Pack(String),
    /// One action.
    Action(ActionRef),
}

impl PauseTarget {
    /// A target by its scope and its name in it; `all` has the empty name.
    ///
    /// # Errors
    /// The field that is wrong, `scope` or `target`, and what would be right.
    pub fn of(scope: &str, target: &str) -> Result<Self, (&'static str, String)> {
        match scope {
            "all" if target.is_empty() => Ok(Self::All),
            "all" => Err(("target", "`all` has no target: leave it out".to_owned())),
            // A pack is named as actions begin.
            "pack" => match ActionRef::check(&format!("{target}.x")) {
                Ok(()) if !target.contains('.') => Ok(Self::Pack(target.to_owned())),
                _ => Err((
                    "target",
                    format!(
                        "{:?} is not a pack; use lower-case letters, digits, `_` and `-`",
                        target.chars().take(64).collect::<String>()
                    ),
                )),
            },
            "action" => match target.parse() {
                Ok(action_ref) => Ok(Self::Action(action_ref)),
                Err(problem) => Err(("target", problem)),
            },
            _ => Err(("scope", "there are action, pack and all".to_owned())),
        }
    }

    /// `action`, `pack` or `all`.
    pub fn scope(&self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Pack(_) => "pack",
            Self::Action(_) => "action",
        }
    }

    /// The action's ref or the pack; empty for all.
    pub fn target(&self) -> &str {
        match self {
            Self::All => "",
            Self::Pack(pack) => pack,
            Self::Action(action_ref) => action_ref.as_str(),
        }
    }

    /// Whether it holds this action.
    pub fn covers(&self, action_ref: &ActionRef) -> bool {
        match self {
            Self::All => true,
            Self::Pack(pack) => pack == action_ref.pack(),
            Self::Action(other) => other == action_ref,
        }
    }
}

impl fmt::Display for PauseTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            other => write!(f, "{} {}", other.scope(), other.target()),
        }
    }
}

/// All pauses at once, as owners decide by them: there are few, and whoever has the whole set cannot
/// miss a part of a change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pauses {
    /// Rises with every change, in the order in which changes were stored; 0 before the first.
    pub version: i64,
    /// What is held.
    pub held: BTreeMap<PauseTarget, PauseMode>,
    /// When what is no longer held was resumed last, in milliseconds since 1970.
    pub resumed: BTreeMap<PauseTarget, i64>,
}

/// How one queue is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The strongest mode that applies; `None` when nobody holds it.
    pub mode: Option<PauseMode>,
    /// When it was resumed last, in milliseconds since 1970: no wait counts from before that, since
    /// nothing expires during a pause. The least number when it never was held.
    pub waits_from: i64,
}

impl Hold {
    /// Nobody holds it, and nobody ever has.
    pub const NONE: Self = Self {
        mode: None,
        waits_from: i64::MIN,
    };
}

impl Pauses {
    /// How the queue of an action is held: by itself, by its pack, or with all.
    pub fn hold_of(&self, action_ref: &ActionRef) -> Hold {
        if self.held.is_empty() && self.resumed.is_empty() {
            return Hold::NONE;
        }
        let targets = [
            PauseTarget::All,
            PauseTarget::Pack(action_ref.pack().to_owned()),
            PauseTarget::Action(action_ref.clone()),
        ];
        let modes = targets.iter().filter_map(|target| self.held.get(target));
        let resumed = targets.iter().filter_map(|target| self.resumed.get(target));
        Hold {
            mode: modes.max().copied(),
            waits_from: resumed.max().copied().unwrap_or(i64::MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(scope: &str, name: &str) -> PauseTarget {
        PauseTarget::of(scope, name).unwrap()
    }

    #[test]
    fn the_strongest_pause_and_the_last_resume_count() {
        let action: ActionRef = "core.http.get".parse().unwrap();
        let mut pauses = Pauses::default();
        assert_eq!(pauses.hold_of(&action), Hold::NONE);
        pauses.held.insert(target("all", ""), PauseMode::Pause);
        pauses.held.insert(target("pack", "core"), PauseMode::Drain);
        pauses.held.insert(target("pack", "shop"), PauseMode::Drain);
        pauses.resumed.insert(target("action", "core.http.get"), 7);
        pauses.resumed.insert(target("action", "core.echo"), 9);
        let hold = pauses.hold_of(&action);
        assert_eq!((hold.mode, hold.waits_from), (Some(PauseMode::Drain), 7));
        pauses.held.remove(&target("pack", "core"));
        assert_eq!(pauses.hold_of(&action).mode, Some(PauseMode::Pause));
        let other: ActionRef = "shop.echo".parse().unwrap();
        assert_eq!(pauses.hold_of(&other).mode, Some(PauseMode::Drain));
    }

    #[test]
    fn a_target_is_read_as_it_is_written_and_else_refused_with_its_field() {
        for (scope, name) in [("all", ""), ("pack", "core"), ("action", "core.echo")] {
            let read = target(scope, name);
            assert_eq!((read.scope(), read.target()), (scope, name));
        }
        let wrong = [
            ("everything", "", "scope"),
            ("all", "core", "target"),
            ("pack", "", "target"),
            ("pack", "core.echo", "target"),
            ("pack", "Core", "target"),
            ("action", "core", "target"),
        ];
        for (scope, name, field) in wrong {
            assert_eq!(PauseTarget::of(scope, name).unwrap_err().0, field);
        }
    }
}
