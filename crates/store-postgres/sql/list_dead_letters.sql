-- Without the bodies. Along the primary key: the upkeep keeps the table small.
SELECT id, message_id, reason, source, bytes, truncated, arrivals, received_at, requeued_at,
       requeued_by, sender
FROM attune.dead_letter
WHERE id < $1::bigint
  AND ($2::text IS NULL OR source = $2::text)
  AND ($3::text IS NULL OR reason = $3::text)
  AND ($4::boolean IS NULL OR (requeued_at IS NOT NULL) = $4::boolean)
ORDER BY id DESC
LIMIT $5::bigint
