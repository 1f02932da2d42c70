-- The days that the history has, today and before, the newest first. Reads the catalog: no day is
-- locked.
SELECT day FROM (
    SELECT to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC' AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'attune.execution_history'::regclass
      AND c.relname ~ '^execution_history_\d{8}$') AS d
WHERE day <= now()
ORDER BY day DESC
