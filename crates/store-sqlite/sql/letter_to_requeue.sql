-- The letter ?1, unless it was put back or has come again since it was read with ?2 arrivals.
SELECT message_id, reason, source FROM dead_letter
 WHERE id = ?1 AND arrivals = ?2 AND requeued_at IS NULL
