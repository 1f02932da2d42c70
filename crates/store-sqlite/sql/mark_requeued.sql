-- Notes that ?3 has put the letter ?1 back, unless it has come again since it was read with ?2
-- arrivals.
UPDATE dead_letter
   SET requeued_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), requeued_by = ?3
 WHERE id = ?1 AND arrivals = ?2 AND requeued_at IS NULL
RETURNING message_id, reason, source
