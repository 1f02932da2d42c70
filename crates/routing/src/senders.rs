//! Who has sent a message, as far as the broker vouches for it.

use std::collections::BTreeSet;

/// What is known of those who send.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Senders {
    /// Whether nothing is taken from whoever the broker does not vouch for.
    pub required: bool,
    /// The user of this process. What it has sent itself was judged before.
    pub own: Option<String>,
    /// Users who may speak for others.
    pub impersonators: BTreeSet<String>,
}

/// Who has sent a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender<'a> {
    /// This user, and what it says counts as its own.
    User(&'a str),
    /// This user, whose word may count for others.
    Impersonator(&'a str),
    /// This process, or another of its kind: what stands in the message was judged before.
    Oneself,
    /// Nobody knows, and nobody needs to.
    Unknown,
}

impl Senders {
    /// The words for a message that the broker vouches for nobody in, and the way out.
    pub const MISSING: &'static str = "the message has no `user_id`, and broker.require_user_id asks for one: \
         publish it with the property `user_id`, which is the name of your own user on the broker";

    /// Judges the user that the broker vouches for.
    ///
    /// # Errors
    /// [`MISSING`](Self::MISSING) when there is none and one is required.
    pub fn judge<'a>(&self, user: Option<&'a str>) -> Result<Sender<'a>, &'static str> {
        match user {
            None if self.required => Err(Self::MISSING),
            None => Ok(Sender::Unknown),
            Some(user) if self.own.as_deref() == Some(user) => Ok(Sender::Oneself),
            Some(user) if self.impersonators.contains(user) => Ok(Sender::Impersonator(user)),
            Some(user) => Ok(Sender::User(user)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_trusted_speaks_for_others() {
        let senders = Senders {
            required: true,
            own: Some("attune-listener".to_owned()),
            impersonators: BTreeSet::from(["rules".to_owned()]),
        };
        let rules = senders.judge(Some("rules"));
        assert_eq!(rules, Ok(Sender::Impersonator("rules")));
        let own = senders.judge(Some("attune-listener"));
        assert_eq!(own, Ok(Sender::Oneself));
        assert_eq!(senders.judge(Some("eve")), Ok(Sender::User("eve")));
        assert_eq!(senders.judge(None), Err(Senders::MISSING));
        assert_eq!(Senders::default().judge(None), Ok(Sender::Unknown));
        let user = Senders::default().judge(Some("eve"));
        assert_eq!(user, Ok(Sender::User("eve")));
    }
}
