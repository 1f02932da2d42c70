-- One message: its id ?1, reason ?2, source ?3, body ?4, length ?5 and sender ?6. One that is there already
-- waits again. Not as a list, because JSON cannot hold every body.
INSERT INTO dead_letter (message_id, reason, source, body, bytes, sender, received_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
    ON CONFLICT (message_id) DO UPDATE
   SET reason = excluded.reason, source = excluded.source, body = excluded.body,
       bytes = excluded.bytes, sender = excluded.sender, arrivals = arrivals + 1, received_at = excluded.received_at,
       requeued_at = NULL, requeued_by = NULL
