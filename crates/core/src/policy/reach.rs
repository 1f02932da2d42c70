//! Whether each rule of priorities is reached: whether none before it is for whatever it is for.

use std::collections::{BTreeMap, HashMap};

use super::{Path, PriorityRule, Test};
use crate::reject::Reject;

/// Checks that no rule has one before it that is for all that it is for. It takes the square of their number,
/// and says nothing of the action that has them: what many inherit of one document is checked there.
pub(super) fn check_reached(rules: &[PriorityRule]) -> Result<(), Reject> {
    let (mut reaches, mut numbers) = (Vec::new(), HashMap::new());
    for (number, rule) in rules.iter().enumerate() {
        let reach = Reach::of(rule, &mut numbers);
        if let Some(before) = reaches.iter().position(|it: &Reach| it.covers(&reach)) {
            let field = format!("policy.priority.rules.{number}");
            let words = format!(
                "`{field}` is never reached: whatever it is for is rule {before}'s already; put it before that \
                 one or leave it out"
            );
            return Err(Reject::field(format!("{field}.when"), words));
        }
        reaches.push(reach);
    }
    Ok(())
}

/// Whom a rule is for. Each value has a number, the same wherever it stands: a hundred rules with thousands of
/// values are compared with each other.
struct Reach<'a>(BTreeMap<&'a Path, Fits>);

/// What fits a test.
enum Fits {
    /// Whatever stands there, or nothing.
    Exists(bool),
    /// One of these values, by rising numbers.
    Values(Vec<usize>),
}

impl<'a> Reach<'a> {
    fn of(rule: &'a PriorityRule, numbers: &mut HashMap<String, usize>) -> Self {
        let tests = rule.when.iter().map(|(path, test)| match test {
            Test::Exists(wanted) => (path, Fits::Exists(wanted.exists)),
            _ => {
                let values = test.values().iter();
                let mut fitting: Vec<usize> = values
                    .map(|value| {
                        let next = numbers.len();
                        *numbers.entry(value.to_string()).or_insert(next)
                    })
                    .collect();
                fitting.sort_unstable();
                fitting.dedup();
                (path, Fits::Values(fitting))
            }
        });
        Self(tests.collect())
    }

    /// Whether it has all that another has.
    fn covers(&self, other: &Self) -> bool {
        let mut tests = self.0.iter();
        tests.all(|(path, fits)| other.0.get(path).is_some_and(|other| fits.covers(other)))
    }
}

impl Fits {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exists(wanted), Self::Exists(other)) => wanted == other,
            (Self::Exists(wanted), Self::Values(_)) => *wanted,
            (Self::Values(_), Self::Exists(_)) => false,
            (Self::Values(all), Self::Values(some)) => {
                let mut all = all.iter();
                // Both rise, so what was passed is not looked for again.
                some.iter().all(|value| all.any(|it| it == value))
            }
        }
    }
}
