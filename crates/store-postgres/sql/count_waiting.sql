-- A scan of the whole table, as load_slots.sql: it gives one row per action instead of one per
-- execution, so that a million that wait cost no more than reading them.
SELECT action, count(*) FROM attune.execution_active
WHERE status = 'queued' AND (id & 255) = ANY($1::bigint[])
GROUP BY action
