-- The caller sends each message once, sorted, so that two callers do not deadlock. A message that
-- is there already waits again.
INSERT INTO attune.dead_letter AS d (message_id, reason, source, body, bytes, sender)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::bigint[], $6::text[])
ON CONFLICT (message_id) DO UPDATE SET
    reason = excluded.reason, source = excluded.source, body = excluded.body,
    bytes = excluded.bytes, sender = excluded.sender, arrivals = d.arrivals + 1, received_at = excluded.received_at,
    requeued_at = NULL, requeued_by = NULL
