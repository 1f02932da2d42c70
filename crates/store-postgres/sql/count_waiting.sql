-- Reads every row of these partitions; it gives one row per action instead of one per execution.
SELECT action, count(*) FROM attune.execution_active
WHERE status = 'queued' AND (id & 255) = ANY($1::bigint[])
GROUP BY action
