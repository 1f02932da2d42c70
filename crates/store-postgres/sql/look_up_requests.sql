-- The hot half of the look-up: never touches the history, whose days would all be locked. The
-- status is asked for row by row and not joined; see commit.sql.
SELECT r.request_id, r.execution_id, r.digest,
       (SELECT e.status FROM attune.execution_active e WHERE e.id = r.execution_id) AS status
FROM attune.request r WHERE r.request_id = ANY($1::uuid[])
