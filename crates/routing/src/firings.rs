//! Rule firings: checked, named, and sent to the owners of their actions' partitions, in the order
//! in which they arrived. A firing that is routed twice is accepted once, by its request id.

use attune_core::secret::find_sealed;
use attune_core::{PartitionId, Reject, RequestId, Submission, TraceParent};
use attune_messages::traces::trace_of_headers;
use attune_messages::v1::{EnforcementCreated, OnReject, Submit};
use attune_messages::{Envelope, Traces, message_bytes};
use serde_json::value::{RawValue, to_raw_value};

use crate::port::Arrived;
use crate::rules::{Item, Read, Rules};
use crate::senders::{Sender, Senders};

/// The rules for rule firings.
#[derive(Debug, Clone)]
pub struct Firings {
    /// How many partitions the cluster has.
    pub partitions: u16,
    /// Who may ask, and for whom.
    pub senders: Senders,
}

impl Rules for Firings {
    type In = EnforcementCreated;
    type Out = Submit;
    /// Of which trace it is a part.
    type Note = Option<TraceParent>;
    const ORDERED: bool = true;
    const NAME: &'static str = "rule firing";

    fn senders(&self) -> &Senders {
        &self.senders
    }

    fn read(&self, arrived: &Arrived, max_bytes: usize) -> Read<Self::Note> {
        let sender = match self.senders.judge(arrived.user.as_deref()) {
            Ok(sender) => sender,
            Err(missing) => return Read::Garbage(missing.to_owned()),
        };
        let read = Envelope::parse(&arrived.body, max_bytes)
            .and_then(|read| Ok((read.items::<EnforcementCreated>()?, read)));
        let (items, envelope) = match read {
            Ok(read) => read,
            Err(error) if error.is_newer() => return Read::Newer,
            Err(error) => return Read::Garbage(error.to_string()),
        };
        let message_id = RequestId(envelope.message_id);
        let (of_all, traces) = (trace_of_headers(&arrived.headers), envelope.traces());
        let items = items.into_iter().enumerate();
        let items = items.map(|(index, EnforcementCreated(mut submission))| {
            submission
                .request_id
                .get_or_insert(message_id.of_item(index));
            submission.trace = traces.get(index).or(of_all);
            self.judge(submission, sender, max_bytes)
        });
        Read::Items(items.collect())
    }

    fn trace(note: &Self::Note) -> Option<TraceParent> {
        *note
    }

    fn turn_back(item: &RawValue) -> Box<RawValue> {
        match serde_json::from_str::<Submit>(item.get()) {
            Ok(submit) => raw(&submit.submission),
            // It was written by this program; whatever it is, nothing of it is lost.
            Err(_) => item.to_owned(),
        }
    }
}

impl Firings {
    /// Where the broker vouches for users, each asks for itself, but for those who may ask for others.
    fn names_itself(&self, submission: &Submission, sender: Sender<'_>) -> Result<(), Reject> {
        match (&submission.requested_by, sender) {
            (Some(named), Sender::User(user)) if self.senders.required && named != user => {
                Err(Reject::field(
                    "requested_by",
                    format!(
                        "it names `{named}`, and the message comes from `{user}`: leave it out, or list \
                         `{user}` in broker.impersonators"
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    fn judge(
        &self,
        submission: Submission,
        sender: Sender<'_>,
        max_bytes: usize,
    ) -> Item<Option<TraceParent>> {
        let checked = submission.check();
        let checked = checked.and_then(|()| refuse_sealed(&submission));
        let checked = checked.and_then(|()| self.names_itself(&submission, sender));
        if let Err(reject) = checked {
            let (item, reason) = (raw(&submission), reject.to_string());
            return Item::Refuse { item, reason };
        }
        let submission = match sender {
            Sender::User(user) if self.senders.required => Submission {
                requested_by: Some(user.to_owned()),
                ..submission
            },
            _ => submission,
        };
        let trace = submission.trace;
        let to = PartitionId::of(&submission.action_ref, self.partitions);
        let submit = Submit {
            submission,
            on_reject: OnReject::Record,
            wait_bound: None,
        };
        let item = raw(&submit);
        // Larger than the message that it came in: it is named, and says what becomes of a refusal.
        let most = max_bytes.saturating_sub(message_bytes::<EnforcementCreated>(0));
        let bytes = item.get().len();
        if bytes > most {
            let reason = format!(
                "the submission has {bytes} bytes when it is routed, and may have {most}: make its \
                 parameters smaller, or raise broker.max_message_bytes"
            );
            let item = raw(&submit.submission);
            return Item::Refuse { item, reason };
        }
        Item::Forward {
            to,
            item,
            // Without room for it, it is what can be left out.
            note: trace.filter(|_| bytes + Traces::BYTES <= most),
            changed: false,
        }
    }
}

/// What looks sealed is written by Attune alone: a sealed value of somebody else could be brought by that to
/// where it is told.
fn refuse_sealed(submission: &Submission) -> Result<(), Reject> {
    match find_sealed("parameters", submission.parameters.get()) {
        None => Ok(()),
        Some(field) => Err(Reject::sealed(field)),
    }
}

fn raw(value: &impl serde::Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("submissions have string keys and finite numbers")
}
