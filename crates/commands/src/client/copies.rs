//! The copies of one command, and what their refusals say.

use attune_core::Reject;
use uuid::Uuid;

/// The messages that hold one command, the last one last. Its owner decides about each by itself; one that
/// the broker has lost comes to nobody.
#[derive(Default)]
pub(super) struct Copies {
    sent: Vec<MessageCopy>,
    /// The last refusal that was heard.
    refusal: Option<Reject>,
    /// Whether a message of an earlier call may still come, of which nothing is known.
    has_stray: bool,
}

struct MessageCopy {
    message_id: Uuid,
    /// How many answers it may have: one for each time that the message was sent, and for each time
    /// that the command stands in it.
    answers: u32,
    /// How many refusals of it were heard.
    refused: u32,
    /// Whether the broker has it at most once, so that whatever is sent later comes later.
    is_in_line: bool,
    /// Whether it went another way than others do.
    is_aside: bool,
}

impl MessageCopy {
    fn is_refused(&self) -> bool {
        self.refused >= self.answers
    }
}

impl Copies {
    /// Those of a new call; `has_stray` when an earlier one has left a message that may still come.
    pub(super) fn new(has_stray: bool) -> Self {
        Self {
            has_stray,
            ..Self::default()
        }
    }

    /// Whether none is with its owner, as far as this call goes.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Whether this message holds one.
    pub(super) fn knows(&self, message_id: Uuid) -> bool {
        self.sent.iter().any(|copy| copy.message_id == message_id)
    }

    /// The command goes out in this message, for the first time or once more. Where it goes another way
    /// than those before it (`is_aside`), any of them may come after it.
    pub(super) fn sending(&mut self, message_id: Uuid, is_aside: bool) {
        if let Some(copy) = self.find(message_id) {
            copy.answers += 1;
            return;
        }
        if is_aside {
            self.sent
                .iter_mut()
                .for_each(|copy| copy.is_in_line = false);
        }
        self.sent.push(MessageCopy {
            message_id,
            answers: 1,
            refused: 0,
            is_in_line: false,
            is_aside,
        });
    }

    /// The bus has confirmed the message, with its first attempt or a later one.
    pub(super) fn confirmed(&mut self, message_id: Uuid, attempts: u32) {
        if let Some(copy) = self.find(message_id) {
            copy.is_in_line = attempts == 1 && !copy.is_aside;
        }
    }

    /// The bus has not taken the message, in none of its attempts.
    pub(super) fn not_sent(&mut self, message_id: Uuid) {
        self.sent.retain(|copy| copy.message_id != message_id);
    }

    /// An owner refuses the copy in this message; one of an earlier release does not say in which.
    pub(super) fn refused(&mut self, message_id: Option<Uuid>, reject: &Reject) {
        let copy = match message_id {
            Some(message_id) => self.find(message_id),
            // One after the other, so that the last word needs all of them.
            None => self.sent.iter_mut().find(|copy| !copy.is_refused()),
        };
        if let Some(copy) = copy {
            copy.refused += 1;
        }
        self.refusal = Some(reject.clone());
    }

    /// The refusal that is the last word, if there is one.
    ///
    /// Of a submission that is the refusal of its last copy: those before it in line are decided by
    /// then, or lost, and had one of them been accepted, so would this one have been. What else is asked for is
    /// done once, so that its second copy is refused when the first has done it: there every copy must
    /// be refused, as must those that may come out of line.
    pub(super) fn last_word(&self, is_submission: bool) -> Option<&Reject> {
        let (last, before) = self.sent.split_last()?;
        let is_over = |copy: &MessageCopy| copy.is_refused() || (is_submission && copy.is_in_line);
        let is_last_word = !self.has_stray && last.is_refused() && before.iter().all(is_over);
        self.refusal.as_ref().filter(|_| is_last_word)
    }

    /// Whether a copy may come out of line when this call is over: after what a later call sends.
    pub(super) fn leaves_stray(&self) -> bool {
        let may_come = |copy: &MessageCopy| !copy.is_in_line && !copy.is_refused();
        self.has_stray || self.sent.iter().any(may_come)
    }

    fn find(&mut self, message_id: Uuid) -> Option<&mut MessageCopy> {
        let mut copies = self.sent.iter_mut();
        copies.find(|copy| copy.message_id == message_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Uuid = Uuid::from_u128(1);
    const TWO: Uuid = Uuid::from_u128(2);

    fn is_over(copies: &Copies) -> bool {
        copies.last_word(true).is_some()
    }

    fn refuse(copies: &mut Copies, message_id: Uuid) {
        copies.refused(Some(message_id), &Reject::queue_full(1));
    }

    /// Two copies, both confirmed.
    fn two() -> Copies {
        let mut copies = Copies::default();
        for message_id in [ONE, TWO] {
            copies.sending(message_id, false);
            copies.confirmed(message_id, 1);
        }
        copies
    }

    #[test]
    fn of_copies_in_line_the_last_decides() {
        let mut copies = two();
        refuse(&mut copies, ONE);
        assert!(!is_over(&copies));
        let mut copies = two();
        refuse(&mut copies, TWO);
        assert!(is_over(&copies));
        assert!(
            copies.last_word(false).is_none(),
            "the first may have done it"
        );
        refuse(&mut copies, ONE);
        assert!(copies.last_word(false).is_some());
    }

    #[test]
    fn a_message_that_was_sent_twice_is_refused_twice() {
        let mut copies = Copies::default();
        copies.sending(ONE, false);
        copies.sending(ONE, false);
        copies.confirmed(ONE, 2);
        refuse(&mut copies, ONE);
        assert!(!is_over(&copies));
        assert!(copies.leaves_stray());
        // One of the two may come after this.
        copies.sending(TWO, false);
        copies.confirmed(TWO, 1);
        refuse(&mut copies, TWO);
        assert!(!is_over(&copies));
        refuse(&mut copies, ONE);
        assert!(is_over(&copies) && !copies.leaves_stray());
    }

    #[test]
    fn a_stray_of_an_earlier_call_leaves_every_refusal_open() {
        let mut copies = Copies::new(true);
        copies.sending(ONE, false);
        copies.confirmed(ONE, 1);
        refuse(&mut copies, ONE);
        assert!(!is_over(&copies) && copies.leaves_stray());
    }

    /// Nobody knows which of two that went different ways comes first.
    #[test]
    fn of_copies_that_went_different_ways_each_is_refused() {
        let mut copies = Copies::default();
        copies.sending(ONE, false);
        copies.confirmed(ONE, 1);
        copies.sending(TWO, true);
        copies.confirmed(TWO, 1);
        refuse(&mut copies, TWO);
        assert!(!is_over(&copies) && copies.leaves_stray());
        refuse(&mut copies, ONE);
        assert!(is_over(&copies) && !copies.leaves_stray());
    }

    #[test]
    fn a_refusal_is_told_when_the_copy_behind_it_is_not_sent_after_all() {
        let mut copies = Copies::default();
        copies.sending(ONE, false);
        copies.sending(TWO, false);
        refuse(&mut copies, ONE);
        assert!(!is_over(&copies));
        copies.not_sent(TWO);
        assert!(is_over(&copies));
    }

    #[test]
    fn an_owner_of_an_earlier_release_refuses_every_copy() {
        let mut copies = two();
        let refusal = Reject::queue_full(1);
        copies.refused(None, &refusal);
        assert!(!is_over(&copies));
        copies.refused(None, &refusal);
        assert!(is_over(&copies));
    }
}
