//! What a run may take of its machine.

use attune_core::{Cpu, Size};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a run of an action may take of its machine, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Memory of all its processes together, in bytes as in `512Mi`; at least `1Mi`. What takes more
    /// is killed and fails with `OUT_OF_MEMORY`. Not set: `worker.limits.memory` of its worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, pattern = "^[0-9]{1,16}(Ki|Mi|Gi|Ti|k|M|G|T)?$")]
    pub memory: Option<Size>,
    /// Processors, on average over a tenth of a second; what wants more waits. Only where the worker's
    /// control group has the controller. Not set: `worker.limits.cpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, nullable = false, minimum = 0.01, maximum = 1024)]
    pub cpu: Option<Cpu>,
    /// Processes and threads at once. Not set: `worker.limits.pids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, maximum = 4_194_304)]
    pub pids: Option<u32>,
}

impl Resources {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
