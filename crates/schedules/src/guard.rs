//! In the place of the worker's guard, which is another process.

use attune_core::WorkerId;

use crate::time::Instant;

#[derive(Debug)]
pub(crate) struct Guard;

impl Guard {
    pub(crate) fn trust(&self, _: WorkerId, _: Instant) {}

    pub(crate) fn lost(&self, _: WorkerId) {}
}
