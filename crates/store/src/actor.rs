//! Who does something, and how that is known.

use std::net::IpAddr;
use std::ops::Deref;

/// Who does something, as the audit log has it; it reads as the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The name, as far as it is known.
    pub name: String,
    /// How that is known.
    pub origin: Origin,
}

impl Actor {
    /// Attune itself.
    pub fn system(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            origin: Origin {
                kind: Some(ActorKind::System),
                via: Some(Via::Process),
                ..Origin::default()
            },
        }
    }

    /// Somebody who works on the store with a command on this machine.
    pub fn at_console(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            origin: Origin {
                kind: Some(ActorKind::Local),
                via: Some(Via::Cli),
                ..Origin::default()
            },
        }
    }
}

/// Nothing is known but the name.
impl<Name: Into<String>> From<Name> for Actor {
    fn from(name: Name) -> Self {
        Self {
            name: name.into(),
            origin: Origin::default(),
        }
    }
}

impl Deref for Actor {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

/// By what somebody is known. What is not known is absent, and an entry without any of it is one of before
/// all of this was written down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// What kind of somebody.
    pub kind: Option<ActorKind>,
    /// The public part of the key that was shown.
    pub key: Option<String>,
    /// The address that it came from.
    pub address: Option<IpAddr>,
    /// The way that it came.
    pub via: Option<Via>,
}

impl Origin {
    /// The columns, in their order: `actor_kind`, `key_id`, `source_ip`, `via`.
    pub fn columns(&self) -> [Option<String>; 4] {
        [
            self.kind.map(|kind| kind.name().to_owned()),
            self.key.clone(),
            self.address.map(|ip| ip.to_canonical().to_string()),
            self.via.map(|via| via.name().to_owned()),
        ]
    }
}

/// Kinds of somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActorKind {
    /// The owner of a key, by its name.
    Key,
    /// Somebody on the machine, where nobody needs a key; the name is as given.
    Local,
    /// Attune itself.
    System,
}

impl ActorKind {
    /// As the column `actor_kind` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Local => "local",
            Self::System => "system",
        }
    }
}

/// Ways to ask for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// A request to the API.
    Http,
    /// A command on the broker, to the owner of a partition. Who may send one is the broker's to say; the name
    /// is as the sender gives it.
    Amqp,
    /// A command that works on the store itself.
    Cli,
    /// Nobody has asked.
    Process,
}

impl Via {
    /// As the column `via` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Amqp => "amqp",
            Self::Cli => "cli",
            Self::Process => "process",
        }
    }
}
