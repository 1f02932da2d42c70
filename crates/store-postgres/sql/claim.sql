-- The one write that is not the owner's: a compare-and-set on (id, attempt).
--
-- Needs no fence. A slot that was taken back has another status or attempt, and the row lock
-- orders the claim before or after the owner's write. A row that this worker runs already is
-- returned again, through the same UPDATE and not through a second read: two claims of one
-- worker may overlap when the answer to the first was lost, and only an UPDATE waits for the
-- other and then looks again. An attempt that is over, and whose execution keeps its slot for the next one,
-- is not there to be claimed. The rows are found as in commit.sql.
WITH lease AS MATERIALIZED (
    SELECT EXISTS (
        SELECT FROM attune.worker_lease l
        WHERE l.worker = $1::uuid AND NOT l.ended) AS holds
),
claimed AS (
    UPDATE attune.execution_active e SET
        status = 'running',
        worker = $1::uuid,
        started_at = CASE WHEN e.status = 'running' THEN e.started_at ELSE now() END
    WHERE (SELECT holds FROM lease)
      AND e.id = ANY($2::bigint[])
      AND e.attempt = ($3::integer[])[width_bucket(e.id, $2::bigint[])]
      AND ((e.status = 'requested' AND e.kept_until IS NULL)
           OR (e.status = 'running' AND e.worker = $1::uuid))
    RETURNING e.id, e.attempt, e.cancel_requested
)
-- One row without an id says that the lease is over.
SELECT NULL::bigint AS id, NULL::integer AS attempt, NULL::boolean AS cancel_requested
FROM lease WHERE NOT holds
UNION ALL
SELECT id, attempt, cancel_requested FROM claimed
