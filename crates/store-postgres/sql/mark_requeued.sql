-- The mark and its entry in the audit log. A letter that has come again since it was read is left
-- as it is.
WITH marked AS (
    UPDATE attune.dead_letter SET requeued_at = now(), requeued_by = $4::text
    WHERE id = $1::bigint AND arrivals = $2::bigint AND requeued_at IS NULL
    RETURNING message_id, reason, source
),
noted AS (
    INSERT INTO attune.audit_log (request_id, who, what, target, reason, before,
                                  actor_kind, key_id, source_ip, via)
    SELECT $3::uuid, $4::text, $5::text, message_id::text, $6::text,
           json_build_object('letter', $1::bigint, 'source', source, 'reason', reason),
           $7::text, $8::text, $9::text, $10::text
    FROM marked
    ON CONFLICT (request_id) DO NOTHING
)
SELECT EXISTS (SELECT FROM marked)
