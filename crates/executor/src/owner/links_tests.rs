//! Tests of what lives of workers are told, in which order, and of what they say.

use attune_core::Refusal;
use attune_dispatch::{Key, Section};

use super::*;

/// A message to a life.
pub(super) struct Sent {
    pub(super) id: PublishId,
    pub(super) worker: WorkerId,
    pub(super) sections: Vec<Section<Dispatch>>,
}

impl Sent {
    /// What it grants.
    pub(super) fn ids(&self) -> impl Iterator<Item = ExecutionId> + '_ {
        let grants = self.sections.iter().flat_map(|section| &section.grants);
        grants.map(|grant| grant.grantee.execution_id)
    }
}

impl World {
    /// What was sent arrives; what it grants.
    pub(super) fn confirm(&mut self) -> Vec<ExecutionId> {
        let sent = std::mem::take(&mut self.sent);
        for sent in &sent {
            self.publish(sent.id, Published::Confirmed);
        }
        sent.iter().flat_map(Sent::ids).collect()
    }

    fn publish(&mut self, id: PublishId, published: Published) {
        self.give(VecDeque::from([Input::Published(id, published)]));
    }
}
