//! Whoever a request comes from.

use crate::grants::{Grants, RESERVED};
use crate::key::KeyId;
use crate::pattern::Pattern;
use crate::role::{Permission, Role};

/// Whoever a request comes from: the owner of a key, or somebody on this machine where no key is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Principal {
    name: String,
    key: Option<KeyId>,
    grants: Grants,
}

impl Principal {
    /// The owner of a key.
    pub fn of_key(name: String, key: KeyId, grants: Grants) -> Self {
        Self {
            name,
            key: Some(key),
            grants,
        }
    }

    /// Somebody on this machine, who needs no key there and may do everything.
    pub fn local() -> Self {
        let mut grants = Grants::new(Role::ALL);
        grants.pools.push(Pattern::any());
        grants.impersonate = true;
        Self {
            name: RESERVED[0].to_owned(),
            key: None,
            grants,
        }
    }

    /// What executions and the audit log call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key that it has shown, if any was asked for.
    pub fn key(&self) -> Option<&KeyId> {
        self.key.as_ref()
    }

    /// What its key is for.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Whether it may do this, as far as no action and no pool is concerned.
    pub fn may(&self, permission: Permission) -> bool {
        let mut roles = self.grants.roles.iter();
        roles.any(|role| role.permissions().contains(&permission))
    }

    /// Whether it may ask for executions of this action, or define it.
    pub fn is_for_action(&self, action_ref: &str) -> bool {
        self.grants.actions.iter().any(|it| it.matches(action_ref))
    }

    /// Whether it may take work for this pool, or define what its workers run. Whoever may do everything
    /// needs not name them.
    pub fn is_for_pool(&self, pool: &str) -> bool {
        let is_admin = self.grants.roles.contains(&Role::Admin) && self.grants.pools.is_empty();
        is_admin || self.grants.pools.iter().any(|it| it.matches(pool))
    }

    /// In whose name it asks for executions: what it says where it may, its own otherwise.
    ///
    /// # Errors
    /// The name that it gave and may not use.
    pub fn speaks_for(&self, given: Option<String>) -> Result<Option<String>, String> {
        match given {
            Some(given) if given != self.name && !self.grants.impersonate => Err(given),
            given if self.key.is_none() => Ok(given),
            Some(given) if self.grants.impersonate => Ok(Some(given)),
            _ => Ok(Some(self.name.clone())),
        }
    }

    /// Who is written down as having done something: the owner of the key, whatever it says. Where nobody needs
    /// a key nobody knows better than what is said.
    pub fn answers_for(&self, said: Option<String>) -> Option<String> {
        match self.key {
            Some(_) => Some(self.name.clone()),
            None => said,
        }
    }

    /// Whether it sees only what is its own.
    pub fn sees_only_its_own(&self) -> bool {
        !self.may(Permission::Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(roles: &[Role]) -> Principal {
        let key = "0123456789ab".parse().unwrap();
        Principal::of_key("ann".to_owned(), key, Grants::new(roles.iter().copied()))
    }

    #[test]
    fn the_owner_of_a_key_has_one_name() {
        let ann = of(&[Role::Submitter]);
        let said = |name: &str| Some(name.to_owned());
        assert_eq!(ann.speaks_for(None), Ok(said("ann")));
        assert_eq!(ann.speaks_for(said("ann")), Ok(said("ann")));
        assert_eq!(ann.speaks_for(said("bob")), Err("bob".to_owned()));
        assert_eq!(ann.answers_for(said("bob")), said("ann"));

        let mut gateway = ann;
        gateway.grants.impersonate = true;
        assert_eq!(gateway.speaks_for(said("bob")), Ok(said("bob")));
        assert_eq!(gateway.speaks_for(None), Ok(said("ann")));
        assert_eq!(gateway.answers_for(said("bob")), said("ann"));

        let local = Principal::local();
        assert_eq!(local.speaks_for(None), Ok(None));
        assert_eq!(local.speaks_for(said("bob")), Ok(said("bob")));
        assert_eq!(local.answers_for(said("bob")), said("bob"));
    }

    #[test]
    fn patterns_bound_what_a_role_may() {
        let mut ann = of(&[Role::Author]);
        ann.grants.actions = vec!["shop.*".parse().unwrap()];
        ann.grants.pools = vec!["batch".parse().unwrap()];
        assert!(ann.is_for_action("shop.export") && !ann.is_for_action("core.command"));
        assert!(ann.is_for_pool("batch") && !ann.is_for_pool("default"));
        assert!(of(&[Role::Admin]).is_for_pool("default"));
        assert!(!of(&[Role::Author]).is_for_pool("default"));
        assert!(Principal::local().is_for_pool("default"));
        assert!(of(&[Role::Submitter]).sees_only_its_own());
        assert!(!of(&[Role::Submitter, Role::Viewer]).sees_only_its_own());
    }
}
