-- A page of one partition along the primary key, after ($2, $3).
SELECT m.limit_id, m.key, m.state, m.written_at
FROM attune.meter m
WHERE m.partition = $1::integer AND (m.limit_id, m.key) > ($2::text, $3::bytea)
ORDER BY m.limit_id, m.key
LIMIT $4::bigint
