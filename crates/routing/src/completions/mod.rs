//! Completions: checked, mended so that they can be stored, and sent to the owners of their
//! partitions. Their order has no meaning.
//!
//! A completion is never refused for what it carries. Output with NUL characters, a result that
//! cannot be stored: they are mended, and the error text says so. A refused completion would keep
//! its slot until somebody looks.

mod decide;
mod mend;
mod read;

use attune_core::{Attempt, ExecutionId, Status};
use attune_messages::message_bytes;
use attune_messages::v1::{ExecutionCompleted, SlotRelease};
use serde_json::value::{RawValue, to_raw_value};

use crate::port::Arrived;
use crate::rules::{Item, Read, Rules};

pub use mend::MIN_ITEM_BYTES;

/// Which attempt of which execution, and how it ended.
pub type Outcome = (ExecutionId, Attempt, Status);

/// The rules for completions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Completions;

impl Rules for Completions {
    type In = ExecutionCompleted;
    type Out = SlotRelease;
    type Note = Outcome;
    const ORDERED: bool = false;
    const NAME: &'static str = "completion";

    fn read(&self, arrived: &Arrived, max_bytes: usize) -> Read<Outcome> {
        match read::read(&arrived.body, max_bytes) {
            Err(error) if error.is_newer() => Read::Newer,
            Err(error) => Read::Garbage(error.to_string()),
            Ok(items) => {
                let room = max_bytes - message_bytes::<ExecutionCompleted>(0);
                Read::Items(items.into_iter().map(|item| judge(item, room)).collect())
            }
        }
    }

    fn turn_back(item: &RawValue) -> Box<RawValue> {
        item.to_owned()
    }
}

fn judge(item: read::Item, room: usize) -> Item<Outcome> {
    let completion = match item {
        Ok(completion) => completion,
        Err(bad) => {
            return Item::Refuse {
                item: bad.item,
                reason: bad.reason,
            };
        }
    };
    let to = match decide::decide(&completion) {
        Ok(partition) => partition,
        Err(refusal) => {
            return Item::Refuse {
                item: to_raw_value(&completion)
                    .expect("completions have string keys and finite numbers"),
                reason: refusal.to_string(),
            };
        }
    };
    let note = (
        completion.execution_id,
        completion.attempt,
        completion.status,
    );
    let mended = mend::mend(completion, room);
    Item::Forward {
        to,
        item: mended.item,
        note,
        changed: mended.changed,
    }
}
