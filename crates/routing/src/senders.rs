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
    /// Users of parts of the system, which may write to owners of partitions; empty for everybody.
    pub parts: BTreeSet<String>,
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

    /// Judges the user of a message to an owner of partitions. The broker alone does not keep others out:
    /// before RabbitMQ 4, who may publish by one key of an exchange reaches all of its queues by the headers `CC`
    /// and `BCC`. Nor does it say of what it moves that somebody else has chosen where to: an answer of ours in a queue
    /// of a client, which lets it go to the owner of a partition, still has our user (`moved_from` is that queue).
    ///
    /// # Errors
    /// Words, when it is none that may write there.
    pub fn judge_part(&self, user: Option<&str>, moved_from: Option<&str>) -> Result<(), String> {
        if let Some(queue) = moved_from {
            return Err(format!(
                "the broker has moved it here from the queue `{queue}`, as whoever declared that queue wants it: what \
                 owners of partitions take was sent to them"
            ));
        }
        let sender = self.judge(user).map_err(str::to_owned)?;
        let is_part = |user: &str| self.parts.is_empty() || self.parts.contains(user);
        match (sender, user) {
            (Sender::Oneself, _) => Ok(()),
            (_, Some(user)) if is_part(user) => Ok(()),
            (_, None) if self.parts.is_empty() => Ok(()),
            (_, user) => Err(format!(
                "it was sent to the owner of a partition by `{}`, who is none of broker.parts",
                user.unwrap_or("nobody the broker vouches for")
            )),
        }
    }

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
            parts: BTreeSet::new(),
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

    #[test]
    fn only_parts_write_to_owners_where_they_are_listed() {
        let mut senders = Senders {
            required: true,
            own: Some("attune-executor".to_owned()),
            impersonators: BTreeSet::from(["rules".to_owned()]),
            parts: BTreeSet::new(),
        };
        assert_eq!(senders.judge_part(Some("eve"), None), Ok(()));
        assert!(senders.judge_part(None, None).is_err());
        senders.parts.insert("attune-api".to_owned());
        for user in ["attune-api", "attune-executor"] {
            assert_eq!(senders.judge_part(Some(user), None), Ok(()));
            let why = senders.judge_part(Some(user), Some("attune.reply.eve"));
            assert!(why.is_err_and(|why| why.contains("`attune.reply.eve`")));
        }
        for user in ["eve", "rules"] {
            let why = senders.judge_part(Some(user), None).unwrap_err();
            assert!(why.contains(user) && why.contains("broker.parts"), "{why}");
        }
        senders.required = false;
        assert!(senders.judge_part(None, None).is_err());
        assert_eq!(Senders::default().judge_part(None, None), Ok(()));
    }
}
