-- The next $3 rows by id, of whatever partition: those of $1, and the last one, which says how far
-- this has come.
SELECT id, action, priority, status, attempt, created, not_before, cancel_requested, unbegun,
       last_error IS NOT NULL AS retried, demand, front, kept_until, worker, grant_no,
       asker
FROM (
    SELECT e.*, lead(e.id) OVER (ORDER BY e.id) IS NULL AS is_last
    FROM (SELECT * FROM attune.execution_active
          WHERE id > $2::bigint ORDER BY id LIMIT $3::bigint) AS e
) AS slice
WHERE (id & 255) = ANY($1::bigint[]) OR is_last
ORDER BY id
