-- Up to ?5 letters without their bodies, before the id ?1; ?2, ?3 and ?4 are filters or NULL.
SELECT id, message_id, reason, source, bytes, truncated, arrivals, received_at, requeued_at,
       requeued_by, sender
  FROM dead_letter
 WHERE id < ?1
   AND (?2 IS NULL OR source = ?2)
   AND (?3 IS NULL OR reason = ?3)
   AND (?4 IS NULL OR (requeued_at IS NOT NULL) = ?4)
 ORDER BY id DESC
 LIMIT ?5
