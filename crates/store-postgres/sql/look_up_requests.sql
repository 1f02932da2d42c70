-- The hot half of the look-up: never touches the history. The oldest row of a request comes first;
-- only a request that was used for two actions around midnight has two (ADR 11). Every day is asked
-- that has rows: a row of a clock that was set lies in any of them. The days to come are there and
-- empty as a rule; to see that once is cheaper than to look for each id in each of them. The status is
-- asked for row by row and not joined; see commit.sql.
SELECT r.request_id, r.execution_id, r.digest, r.created,
       (SELECT e.status FROM attune.execution_active e WHERE e.id = r.execution_id) AS status
FROM attune.request r
WHERE r.request_id = ANY($1::uuid[])
  AND r.created < (
      SELECT CASE WHEN EXISTS (SELECT FROM attune.request WHERE created >= tomorrow)
                  THEN 'infinity' ELSE tomorrow END
      FROM (SELECT ((now() AT TIME ZONE 'UTC')::date + 1)::timestamp AT TIME ZONE 'UTC' AS tomorrow) AS t)
ORDER BY r.created, r.execution_id
