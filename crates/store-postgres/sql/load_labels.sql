-- The users and labels of these executions: nothing that may be large.
SELECT id, requested_by, labels::text AS labels
FROM attune.execution_active
WHERE id = ANY($1::bigint[])
ORDER BY id
