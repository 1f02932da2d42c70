//! Which of several copies of a message is needed no more.
//!
//! A message that nobody can use yet is published to the end of its topic, and what was received is
//! acknowledged afterwards. So it is there twice whenever the publish was kept without an answer and is
//! repeated, or when the connection is lost before the acknowledgement arrives, and each of the two
//! likewise. Therefore each says in a header how often it has gone back, and whoever has seen one that went
//! back more often acknowledges those that did so less often.
//!
//! That loses nothing. A copy leaves its topic in three ways: somebody used it, or it was acknowledged after
//! one that went back more often was kept, or because such a one had been seen. So from the moment at which a
//! copy is seen there is always one that went back as often or more, or the message was used.

use std::collections::HashMap;

use uuid::Uuid;

/// The header that says how often a message has gone back to the end of its topic.
pub const TIMES_BACK: &str = "x-attune-times-back";

/// How many messages are remembered in each half of [`Copies`].
const HALF: usize = 2048;

/// Headers of a message: name and text.
pub type Headers = Vec<(String, String)>;

/// One copy of a message: which message, and how often it has gone back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageCopy {
    message: Uuid,
    times: u32,
}

impl MessageCopy {
    /// What a message is a copy of: one with the same id, body, address for answers and headers, but for
    /// [`TIMES_BACK`].
    pub fn of(
        message_id: Uuid,
        body: &[u8],
        reply_to: Option<&str>,
        headers: &[(String, String)],
    ) -> Self {
        let others = headers.iter().filter(|(name, _)| name != TIMES_BACK);
        let around: Vec<_> = others.collect();
        // Quoted, so that no two lists look alike.
        let around = format!("{reply_to:?} {around:?}");
        let message = Uuid::new_v5(&Uuid::new_v5(&message_id, around.as_bytes()), body);
        Self {
            message,
            times: times_back(headers),
        }
    }

    /// Which message it is a copy of.
    pub fn message(&self) -> Uuid {
        self.message
    }

    /// Whether both are copies of one message.
    pub fn is_twin_of(&self, other: &Self) -> bool {
        self.message == other.message
    }

    /// How often it has gone back.
    pub fn times(&self) -> u32 {
        self.times
    }

    /// Writes among the headers of the copy that goes back now that it did so once more.
    pub fn mark(&self, headers: &mut Headers) {
        headers.retain(|(name, _)| name != TIMES_BACK);
        let times = self.times.saturating_add(1);
        headers.push((TIMES_BACK.to_owned(), times.to_string()));
    }
}

fn times_back(headers: &[(String, String)]) -> u32 {
    let times = headers.iter().find(|(name, _)| name == TIMES_BACK);
    times.map_or(0, |(_, times)| times.parse().unwrap_or(0))
}

/// The id of a message that goes back: its own, or where that is none, one that a message with the same
/// text in place of an id and the same body always gets.
pub fn lasting_id(message_id: Option<&str>, body: &[u8]) -> Uuid {
    let text = message_id.unwrap_or_default();
    let own = text.parse().ok();
    let made = || Uuid::new_v5(&Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()), body);
    own.unwrap_or_else(made)
}

/// The latest copy that was seen of each message, for the last few thousand of them.
#[derive(Debug, Default)]
pub struct Copies {
    recent: HashMap<Uuid, u32>,
    /// Those before; forgotten when there are enough recent ones.
    older: HashMap<Uuid, u32>,
}

impl Copies {
    /// Whether one was seen that went back more often; if not, this one is the latest.
    pub fn is_outdated(&mut self, copy: MessageCopy) -> bool {
        let recent = self.recent.get(&copy.message);
        let seen = recent.or_else(|| self.older.get(&copy.message)).copied();
        let latest = seen.map_or(copy.times, |seen| seen.max(copy.times));
        self.remember(copy.message, latest);
        latest > copy.times
    }

    /// Notes that the bus has kept what went back in place of this copy.
    pub fn went_back(&mut self, copy: MessageCopy) {
        let times = copy.times.saturating_add(1);
        self.is_outdated(MessageCopy { times, ..copy });
    }

    fn remember(&mut self, message: Uuid, times: u32) {
        if self.recent.len() >= HALF && !self.recent.contains_key(&message) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(message, times);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use proptest::prelude::*;

    use super::*;

    fn copy(id: u128, times: &str) -> MessageCopy {
        let headers = [(TIMES_BACK.to_owned(), times.to_owned())];
        MessageCopy::of(Uuid::from_u128(id), b"body", None, &headers)
    }

    #[test]
    fn the_copy_that_went_back_most_often_stays() {
        let mut copies = Copies::default();
        assert!(!copies.is_outdated(copy(1, "0")));
        assert!(!copies.is_outdated(copy(1, "0")), "it may be the same one");
        copies.went_back(copy(1, "0"));
        assert!(copies.is_outdated(copy(1, "0")));
        assert!(!copies.is_outdated(copy(1, "1")));
        assert!(!copies.is_outdated(copy(1, "7")), "another program had it");
        assert!(copies.is_outdated(copy(1, "6")));
        assert!(!copies.is_outdated(copy(2, "0")));
    }

    /// The last count there is stays the last one: it is never lower than what was seen.
    #[test]
    fn any_number_may_stand_in_the_header() {
        for text in ["", "-1", "x", "4294967296"] {
            assert_eq!(copy(1, text).times(), 0, "{text}");
        }
        let mut copies = Copies::default();
        let last = copy(1, "4294967295");
        copies.went_back(last);
        assert!(!copies.is_outdated(last));
        let mut headers = Headers::new();
        last.mark(&mut headers);
        assert_eq!(headers, [(TIMES_BACK.to_owned(), u32::MAX.to_string())]);
    }

    #[test]
    fn what_differs_is_no_copy() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let id = Uuid::from_u128(1);
        let one = MessageCopy::of(id, b"body", Some("r"), &[pair("a", "b")]);
        let mut headers = vec![pair("a", "b"), pair(TIMES_BACK, "3")];
        let back = MessageCopy::of(id, b"body", Some("r"), &headers);
        assert!(one.is_twin_of(&back));
        back.mark(&mut headers);
        assert_eq!(headers, [pair("a", "b"), pair(TIMES_BACK, "4")]);
        for other in [
            MessageCopy::of(Uuid::nil(), b"body", Some("r"), &headers),
            MessageCopy::of(id, b"other", Some("r"), &headers),
            MessageCopy::of(id, b"body", None, &headers),
            MessageCopy::of(id, b"body", Some("r"), &[pair("a", "c")]),
            MessageCopy::of(id, b"body", Some("r"), &[pair("ab", "")]),
        ] {
            assert!(!one.is_twin_of(&other), "{other:?}");
        }
    }

    /// Those that come again and again are remembered, however many others come once.
    #[test]
    fn what_is_remembered_is_bounded() {
        let mut copies = Copies::default();
        copies.went_back(copy(0, "5"));
        for id in 1..4 * HALF as u128 {
            assert!(!copies.is_outdated(copy(id, "0")));
            assert!(copies.is_outdated(copy(0, "5")));
            assert!(copies.recent.len() + copies.older.len() <= 2 * HALF);
        }
        assert!(!copies.is_outdated(copy(0, "6")));
    }

    #[test]
    fn a_message_without_id_keeps_the_one_it_gets() {
        let own = Uuid::from_u128(9);
        assert_eq!(lasting_id(Some(&own.to_string()), b"a"), own);
        assert_eq!(lasting_id(Some("1"), b"a"), lasting_id(Some("1"), b"a"));
        assert_ne!(lasting_id(Some("1"), b"a"), lasting_id(Some("2"), b"a"));
        assert_ne!(lasting_id(None, b"a"), lasting_id(None, b"b"));
    }

    /// What happens to a copy that a program has received.
    #[derive(Debug, Clone, Copy)]
    enum Fate {
        GoesBack,
        /// The first publish is not answered, though the bus has kept it.
        PublishedTwice,
        /// The connection is lost between the confirm and the acknowledgement.
        GivenBack,
        /// The same, and the program ends.
        GivenBackAndForgotten,
        /// The program ends before it does anything.
        Forgotten,
    }

    /// A topic of messages that nobody can use, and programs that each receive from it.
    struct World {
        /// Message and times back, the next one first.
        topic: VecDeque<(u128, u32)>,
        programs: Vec<Copies>,
    }

    impl World {
        fn receive(&mut self, program: usize, fate: Fate) {
            let (id, times) = self.topic.pop_front().expect("nothing is ever lost");
            let copies = &mut self.programs[program];
            let received = copy(id, &times.to_string());
            if matches!(fate, Fate::Forgotten) {
                *copies = Copies::default();
                return self.topic.push_front((id, times));
            }
            if copies.is_outdated(received) {
                return;
            }
            if matches!(fate, Fate::PublishedTwice) {
                self.topic.push_back((id, times + 1));
            }
            self.topic.push_back((id, times + 1));
            copies.went_back(received);
            if matches!(fate, Fate::GivenBackAndForgotten) {
                *copies = Copies::default();
            }
            if matches!(fate, Fate::GivenBack | Fate::GivenBackAndForgotten) {
                self.topic.push_front((id, times));
            }
        }

        fn messages(&self) -> BTreeSet<u128> {
            self.topic.iter().map(|(id, _)| *id).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever happens, each message is there; and with some quiet, once.
        #[test]
        fn copies_become_one_and_never_none(
            fates in proptest::collection::vec((0..3_usize, 0..9_u8), 0..200),
            quiet in proptest::collection::vec(0..3_usize, 2_000),
            programs in 1..=3_usize,
        ) {
            let mut world = World {
                topic: (0..4).map(|id| (id, 0)).collect(),
                programs: (0..programs).map(|_| Copies::default()).collect(),
            };
            for (program, fate) in fates {
                let fate = match fate {
                    0 => Fate::PublishedTwice,
                    1 => Fate::GivenBack,
                    2 => Fate::GivenBackAndForgotten,
                    3 => Fate::Forgotten,
                    _ => Fate::GoesBack,
                };
                world.receive(program % programs, fate);
                prop_assert_eq!(world.messages().len(), 4);
            }
            for program in quiet {
                world.receive(program % programs, Fate::GoesBack);
                prop_assert_eq!(world.messages().len(), 4);
            }
            prop_assert_eq!(world.topic.len(), 4, "{:?}", world.topic);
        }
    }
}
