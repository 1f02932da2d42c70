//! What the store has in the end.

use attune_core::{ExecutionId, Status};
use attune_store::{Bodies, ExecutionFilter, ExecutionRecord, ExecutionStore, StoreError};

use crate::scenario::Scenario;

/// How many rows are read at once.
const PAGE: u32 = 1000;

/// An execution as the store has it; times are the store's, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Which execution.
    pub id: ExecutionId,
    /// Which of the scenario's actions.
    pub action: usize,
    /// Where it stands.
    pub status: Status,
    /// When it was accepted.
    pub created_us: i64,
    /// When it was given a slot, if it was.
    pub requested_us: Option<i64>,
    /// When its end was recorded, if it has ended.
    pub finished_us: Option<i64>,
}

impl Row {
    /// The row of a record of the scenario's action with this number.
    pub fn of(action: usize, record: &ExecutionRecord) -> Self {
        Self {
            id: record.id,
            action,
            status: record.status,
            created_us: record.created.timestamp_micros(),
            requested_us: record.requested_at.map(|time| time.timestamp_micros()),
            finished_us: record.finished_at.map(|time| time.timestamp_micros()),
        }
    }
}

/// Every execution of the scenario's actions.
///
/// # Errors
/// When the store fails.
pub async fn read_rows(
    store: &(impl ExecutionStore + ?Sized),
    scenario: &Scenario,
) -> Result<Vec<Row>, StoreError> {
    let mut rows = Vec::with_capacity(scenario.executions);
    // All of them, whatever their action: there may be as many actions as executions.
    let filter = ExecutionFilter {
        bodies: Bodies::NONE,
        ..ExecutionFilter::default()
    };
    let mut after = None;
    loop {
        let page = store.list_executions(&filter, after, PAGE).await?;
        rows.extend(page.executions.iter().filter_map(|record| {
            let action = scenario.action_named(&record.action_ref)?;
            Some(Row::of(action, record))
        }));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(rows)
}
