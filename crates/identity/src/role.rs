//! Roles, and what each may do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Something that has to be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Permission {
    /// See executions, queues, actions, policies, holders and the cluster.
    Read,
    /// See one's own executions, and the actions that one may ask for.
    ReadOwn,
    /// Ask for executions of the actions of the key.
    Submit,
    /// End one's own executions.
    CancelOwn,
    /// End and move the executions of others, hold queues, take slots back.
    Operate,
    /// Change the limits of others: policy documents.
    Limit,
    /// Define actions, which is to run programs in the pools of the key.
    Author,
    /// Take work for the pools of the key.
    Work,
    /// Read the audit log.
    Audit,
    /// Read dead letters and put them back.
    Letters,
    /// Administer executions: `/api/v1/admin`.
    Administer,
    /// Make and revoke keys.
    Keys,
    /// Read the metrics.
    Metrics,
    /// See what is secret in parameters.
    Secrets,
}

impl Permission {
    /// The word for it, as a refusal says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::ReadOwn => "read_own",
            Self::Submit => "submit",
            Self::CancelOwn => "cancel_own",
            Self::Operate => "operate",
            Self::Limit => "limit",
            Self::Author => "author",
            Self::Work => "work",
            Self::Audit => "audit",
            Self::Letters => "letters",
            Self::Administer => "administer",
            Self::Keys => "keys",
            Self::Metrics => "metrics",
            Self::Secrets => "secrets",
        }
    }
}

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees everything and changes nothing.
    Viewer,
    /// Asks for executions, and sees and ends its own.
    Submitter,
    /// Takes work over HTTP.
    Worker,
    /// Defines actions and policies.
    Author,
    /// Runs the system: holds queues, ends executions, takes slots back.
    Operator,
    /// May do everything but take work.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 6] = [
        Self::Viewer,
        Self::Submitter,
        Self::Worker,
        Self::Author,
        Self::Operator,
        Self::Admin,
    ];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Submitter => "submitter",
            Self::Worker => "worker",
            Self::Author => "author",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// What it may do. Nothing else may it.
    pub const fn permissions(self) -> &'static [Permission] {
        use Permission as P;
        match self {
            Self::Viewer => &[P::Read],
            Self::Submitter => &[P::ReadOwn, P::Submit, P::CancelOwn],
            Self::Worker => &[P::Work],
            Self::Author => &[P::Read, P::Author, P::Limit],
            Self::Operator => &[
                P::Read,
                P::Submit,
                P::Operate,
                P::Limit,
                P::Audit,
                P::Letters,
            ],
            Self::Admin => &[
                P::Read,
                P::Submit,
                P::Operate,
                P::Limit,
                P::Author,
                P::Audit,
                P::Letters,
                P::Administer,
                P::Keys,
                P::Metrics,
                P::Secrets,
            ],
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let role = Self::ALL.into_iter().find(|role| role.name() == text);
        role.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no such role; there are {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_read_by_its_name() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
            let json = format!("{:?}", role.name());
            assert_eq!(serde_json::to_string(&role).unwrap(), json);
        }
        assert!(
            "root"
                .parse::<Role>()
                .unwrap_err()
                .contains("viewer, submitter")
        );
    }

    #[test]
    fn only_who_works_takes_work() {
        let may = |role: Role, permission| role.permissions().contains(&permission);
        for role in Role::ALL {
            assert_eq!(may(role, Permission::Work), role == Role::Worker, "{role}");
            assert_eq!(may(role, Permission::Keys), role == Role::Admin, "{role}");
        }
    }
}
