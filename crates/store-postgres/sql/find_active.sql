-- While it waits or holds a slot. The history's rows all have a time of their end, which leaves it out.
SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels::text, parameters::text, not_before, timeout_seconds,
       cancel_requested, worker, created, requested_at, started_at, finished_at, result::text,
       error, exit_code, stdout, stderr, requeue_of, last_error, end_code,
       traceparent
FROM attune.execution WHERE id = $1::bigint AND finished_at IS NULL
