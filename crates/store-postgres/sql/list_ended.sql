-- As list_active.sql, in some days of the history: those since $15 and before $16, unbounded where there
-- is none. Only what comes before the place ($13, $14) in the list, if there is one.
SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels::text,
       CASE WHEN $8::boolean THEN parameters::text END AS parameters, not_before, timeout_seconds,
       cancel_requested, worker, created, requested_at, started_at, finished_at,
       CASE WHEN $9::boolean THEN result::text END AS result, error, exit_code,
       CASE WHEN $10::boolean THEN stdout END AS stdout,
       CASE WHEN $11::boolean THEN stderr END AS stderr, requeue_of,
       last_error, end_code,
       traceparent
FROM attune.execution_history
WHERE ($1::text IS NULL OR action = (SELECT a.id FROM attune.action a WHERE a.ref = $1::text))
  AND ($2::text[] IS NULL OR status = ANY($2::text[]))
  AND ($3::text IS NULL OR requested_by = $3::text)
  AND ($4::text IS NULL OR group_key = $4::text)
  AND ($12::smallint[] IS NULL OR priority = ANY($12::smallint[]))
  AND ($5::timestamptz IS NULL OR (created, id) < ($5::timestamptz, $6::bigint))
  AND ($13::timestamptz IS NULL OR (created, id) > ($13::timestamptz, $14::bigint))
  AND ($15::timestamptz IS NULL OR finished_at >= $15::timestamptz)
  AND ($16::timestamptz IS NULL OR finished_at < $16::timestamptz)
ORDER BY created DESC, id DESC
LIMIT $7::bigint
