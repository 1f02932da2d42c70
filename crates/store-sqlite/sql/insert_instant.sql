-- Executions that were accepted and ended in the same round, one object each in
-- ?1, decided at ?2.
INSERT INTO execution_history
       (id, action, action_ref, priority, status, attempt, grant_no, request_id, enforcement_id,
        requested_by, group_key, labels, parameters, not_before, timeout_seconds,
        cancel_requested, created, requested_at, finished_at,
        result, error, exit_code, stdout, stderr, requeue_of, end_code)
SELECT e.value ->> 'id', e.value ->> 'action', e.value ->> 'action_ref', e.value ->> 'priority',
       e.value ->> 'status', e.value ->> 'attempt', e.value ->> 'grant_no',
       e.value ->> 'request_id', e.value ->> 'enforcement_id', e.value ->> 'requested_by',
       e.value ->> 'group_key', e.value ->> 'labels', e.value ->> 'parameters',
       e.value ->> 'not_before', e.value ->> 'timeout_seconds', 0,
       ?2, CASE WHEN e.value ->> 'attempt' > 0 THEN ?2 END, ?2,
       e.value ->> 'result', e.value ->> 'error', e.value ->> 'exit_code',
       e.value ->> 'stdout', e.value ->> 'stderr', e.value ->> 'requeue_of',
       e.value ->> 'end_code'
  FROM jsonb_each(?1) AS e
 WHERE true
    ON CONFLICT (id) DO NOTHING
