//! What is known of one request.

use attune_core::{ExecutionId, Priority, RejectCode};

/// What is known of a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Request {
    /// When it was first made, and the record.
    pub(super) invoked: Option<(i64, u32)>,
    pub(super) invokes: u32,
    pub(super) oks: u32,
    pub(super) fails: u32,
    /// How often its client did not learn what became of it.
    pub(super) infos: u32,
    pub(super) failed: Option<u32>,
    /// How often the API has answered.
    pub(super) answers: u32,
    /// How often the API knew that it stores nothing for it, the last record, and whether it
    /// ever answered in another way.
    pub(super) refusals: u32,
    pub(super) refused: Option<u32>,
    pub(super) answered_otherwise: bool,
    /// When its client asked last, and when it last gave up without an answer.
    pub(super) last_invoked: Option<i64>,
    pub(super) last_given_up: Option<i64>,
    /// The API's last answer: when, and whether an owner had no room for it.
    pub(super) last_answered: Option<(i64, bool)>,
    pub(super) queue: Option<(u32, Priority)>,
    /// For whom it was made, if that is recorded: a name of [`names`](super::facts::Facts::names), the empty
    /// one of whoever names nobody.
    pub(super) user: Option<u32>,
    /// Whether it was made to be held up.
    pub(super) delayed: bool,
    /// Whether it was not the same each time that it was made.
    pub(super) differs: bool,
    /// When it was first known to be accepted, and the record.
    pub(super) ok: Option<(i64, u32)>,
    /// What it became, and the record that says so.
    pub(super) execution: Option<(ExecutionId, u32)>,
}

impl Request {
    /// The API has answered, at this time and with this record.
    pub(super) fn answered(
        &mut self,
        (t_ns, record): (i64, u32),
        http_status: u16,
        code: Option<&str>,
    ) {
        self.answers += 1;
        // Of what is drained nothing is stored, as of what is full.
        let is_drained = code == Some(RejectCode::QueueDraining.as_str());
        let is_full = http_status == 429 && code == Some(RejectCode::QueueFull.as_str());
        let had_no_room = is_full || is_drained;
        self.last_answered = self.last_answered.max(Some((t_ns, had_no_room)));
        // A conflict is one with something that is stored; this one is with its own refusal.
        let is_recorded = code == Some(RejectCode::AlreadyRejected.as_str());
        let is_refusal = (400..500).contains(&http_status) && (http_status != 409 || is_recorded);
        if is_refusal || is_drained {
            self.refusals += 1;
            self.refused = Some(record);
        } else {
            self.answered_otherwise = true;
        }
    }
}
