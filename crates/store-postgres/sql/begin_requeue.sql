-- What is about to be done with a letter, as an entry of the audit log; see mark_requeued.sql.
WITH letter AS (
    SELECT message_id, reason, source FROM attune.dead_letter
    WHERE id = $1::bigint AND arrivals = $2::bigint AND requeued_at IS NULL
),
noted AS (
    INSERT INTO attune.audit_log (request_id, who, what, target, reason, before,
                                  actor_kind, key_id, source_ip, via)
    SELECT $3::uuid, $4::text, $5::text, message_id::text, $6::text,
           json_build_object('letter', $1::bigint, 'source', source, 'reason', reason),
           $7::text, $8::text, $9::text, $10::text
    FROM letter
    ON CONFLICT (request_id) DO NOTHING
)
SELECT EXISTS (SELECT FROM letter)
