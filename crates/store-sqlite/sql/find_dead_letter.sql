SELECT id, message_id, reason, source, bytes, truncated, arrivals, received_at, requeued_at,
       requeued_by, sender, body
  FROM dead_letter
 WHERE id = ?1
