-- In some days of the history: those since $2 and before $3, unbounded where there is none.
SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels::text, parameters::text, not_before, timeout_seconds,
       cancel_requested, worker, created, requested_at, started_at, finished_at, result::text,
       error, exit_code, stdout, stderr, requeue_of, last_error, end_code,
       traceparent
FROM attune.execution_history
WHERE id = $1::bigint
  AND ($2::timestamptz IS NULL OR finished_at >= $2::timestamptz)
  AND ($3::timestamptz IS NULL OR finished_at < $3::timestamptz)
