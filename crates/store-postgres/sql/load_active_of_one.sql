-- A page of one partition, along the index on (partition, place): as much work as it has rows.
SELECT id, action, priority, status, attempt, created, not_before, cancel_requested, now() AS now
FROM attune.execution_active
WHERE (id & 255) = $1::bigint AND (id >> 8) > ($2::bigint >> 8)
ORDER BY (id >> 8)
LIMIT $3::bigint
