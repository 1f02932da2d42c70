-- The hot half of the look-up: never touches the history. The oldest row of a request comes first;
-- only a request that was used for two actions around midnight has two (ADR 11). Every day is asked:
-- there are few, and a row of a clock that was set lies in any of them. The status is asked for row by
-- row and not joined; see commit.sql.
SELECT r.request_id, r.execution_id, r.digest, r.created,
       (SELECT e.status FROM attune.execution_active e WHERE e.id = r.execution_id) AS status
FROM attune.request r
WHERE r.request_id = ANY($1::uuid[])
ORDER BY r.created, r.execution_id
