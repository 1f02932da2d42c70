SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels, parameters, not_before, timeout_seconds, cancel_requested,
       worker, created, requested_at, started_at, finished_at, result, error, exit_code, stdout,
       stderr, requeue_of, last_error, end_code,
       traceparent
  FROM execution
 WHERE id = ?1
