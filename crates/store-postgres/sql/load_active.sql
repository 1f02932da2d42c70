-- A page by id over the primary key. The partition is the id's low byte, so several partitions
-- come out of one scan. The age is left to the caller: cheaper over a million rows.
SELECT id, action, priority, status, attempt, created, not_before, cancel_requested, now() AS now
FROM attune.execution_active
WHERE id > $2::bigint AND (id & 255) = ANY($1::bigint[])
ORDER BY id
LIMIT $3::bigint
