//! What was counted for limits.

use attune_core::PartitionId;
use attune_executor::stored::{MeterPlace, StoredMeter};

use super::Store;

impl Store {
    /// What was counted in a partition.
    pub(crate) fn load_meters(
        &self,
        partition: PartitionId,
        after: Option<&MeterPlace>,
        limit: usize,
    ) -> (Vec<StoredMeter>, Option<MeterPlace>) {
        let mine = self
            .meters
            .iter()
            .filter(|((of, place), _)| *of == partition && after.is_none_or(|after| place > after));
        let rows = mine
            .take(limit)
            .map(|((_, place), (state, written_at))| StoredMeter {
                place: place.clone(),
                state: state.clone(),
                written_at: *written_at + 1,
            });
        let rows: Vec<StoredMeter> = rows.collect();
        let last = rows.last().filter(|_| rows.len() == limit);
        let next = last.map(|row| row.place.clone());
        (rows, next)
    }
}
