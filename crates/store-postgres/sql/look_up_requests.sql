-- The hot half of the look-up: never touches the history. The oldest row of a request comes first;
-- only a request that was used for two actions around midnight has two (ADR 11). The days after
-- tomorrow are left out as the plan starts; tomorrow is for a clock that was set back. The status is
-- asked for row by row and not joined; see commit.sql.
SELECT r.request_id, r.execution_id, r.digest, r.created,
       (SELECT e.status FROM attune.execution_active e WHERE e.id = r.execution_id) AS status
FROM attune.request r
WHERE r.request_id = ANY($1::uuid[]) AND r.created < now() + interval '1 day'
ORDER BY r.created, r.execution_id
