//! What a key is given when it is made.

use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;
use crate::rate::Rates;
use crate::role::Role;

/// Patterns of one kind that a key has at most.
const MAX_PATTERNS: usize = 64;
/// The largest bound of what may wait.
const MAX_WAITING: u32 = 1_000_000;
/// The longest name of a key, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// What the names of those begin with who have no key; no key may be called so.
pub(crate) const RESERVED: [&str; 2] = ["local", "attune"];

/// What a key is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grants {
    /// Its roles; at least one.
    pub roles: Vec<Role>,
    /// The actions that it may ask for or define.
    pub actions: Vec<Pattern>,
    /// The pools that it may take work for, or whose workers run what it defines.
    pub pools: Vec<Pattern>,
    /// Whether it may ask for executions in the name of others.
    pub impersonate: bool,
    /// How much it may ask for; what is not set is as the settings say.
    pub rates: Rates,
    /// How many of its executions may wait at once; `None`: as many as there is room for.
    pub max_waiting: Option<u32>,
}

impl Grants {
    /// Of these roles, for all actions and no pool.
    pub fn new(roles: impl IntoIterator<Item = Role>) -> Self {
        Self {
            roles: roles.into_iter().collect(),
            actions: vec![Pattern::any()],
            pools: Vec::new(),
            impersonate: false,
            rates: Rates::default(),
            max_waiting: None,
        }
    }

    /// Checks that they make sense together.
    ///
    /// # Errors
    /// The field and what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.roles.is_empty() {
            let names = Role::ALL.map(Role::name).join(", ");
            return Err(("roles", format!("a key has at least one role: {names}")));
        }
        for (field, patterns) in [("actions", &self.actions), ("pools", &self.pools)] {
            if patterns.len() > MAX_PATTERNS {
                return Err((
                    field,
                    format!("a key has at most {MAX_PATTERNS} patterns here"),
                ));
            }
        }
        let needs_pool = |role: &&Role| matches!(role, Role::Worker | Role::Author);
        if let (Some(role), true) = (self.roles.iter().find(needs_pool), self.pools.is_empty()) {
            return Err((
                "pools",
                format!(
                    "a key with the role {role} names the pools that it is for, or `*` for all: whoever has it \
                     decides what their workers run, or sees it"
                ),
            ));
        }
        self.rates.check()?;
        match self.max_waiting {
            Some(many) if !(1..=MAX_WAITING).contains(&many) => Err((
                "max_waiting",
                format!("must be from 1 to {MAX_WAITING}, or not set"),
            )),
            _ => Ok(()),
        }
    }
}

/// Checks the name of a key: it stands for whoever has the key in executions and in the audit log.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'@');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(fits) {
        return Err(format!(
            "a name has 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_`, `-` and `@`"
        ));
    }
    if RESERVED.contains(&name) {
        return Err(format!(
            "`{name}` is what the system calls itself; take another name"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused() {
        let field = |change: &dyn Fn(&mut Grants)| {
            let mut grants = Grants::new([Role::Viewer]);
            change(&mut grants);
            grants.check().map_err(|(field, _)| field)
        };
        assert_eq!(field(&|_| ()), Ok(()));
        assert_eq!(field(&|it| it.roles.clear()), Err("roles"));
        assert_eq!(field(&|it| it.roles.push(Role::Worker)), Err("pools"));
        assert_eq!(field(&|it| it.roles.push(Role::Author)), Err("pools"));
        let many = vec![Pattern::any(); MAX_PATTERNS + 1];
        assert_eq!(field(&|it| it.actions.clone_from(&many)), Err("actions"));
        assert_eq!(field(&|it| it.max_waiting = Some(0)), Err("max_waiting"));
    }

    #[test]
    fn a_name_steers_nothing() {
        for (name, fits) in [
            ("ann", true),
            ("ann@example.com", true),
            ("ci.deploy-1", true),
            ("", false),
            ("local", false),
            ("attune", false),
            ("amqp:ann", false),
            ("ann\n", false),
            ("ä", false),
        ] {
            assert_eq!(check_name(name).is_ok(), fits, "{name:?}");
        }
        assert!(check_name(&"a".repeat(65)).is_err());
    }
}
