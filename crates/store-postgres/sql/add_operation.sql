-- Nothing where the same was asked for before, or $7 are open, along the index of what is open.
INSERT INTO attune.operation (request_id, kind, filter, args, who, reason)
SELECT $1::uuid, $2::text, $3::text::json, $4::text::json, $5::text, $6::text
WHERE (SELECT count(DISTINCT operation) FROM attune.operation_progress WHERE state <> 'done')
    < $7::bigint
ON CONFLICT (request_id) DO NOTHING
RETURNING id
