-- Copies executions that end at ?2 into the history, or a moment later if the clock by which they
-- started was ahead; end_delete.sql follows in the same transaction,
-- because SQLite cannot insert what a DELETE returns. CROSS JOIN fixes the order of the loops:
-- from the batch into the table by id, never the other way round.
INSERT INTO execution_history
       (id, action, action_ref, priority, status, attempt, grant_no, request_id, enforcement_id,
        requested_by, group_key, labels, parameters, not_before, timeout_seconds,
        cancel_requested, worker, created, requested_at, started_at, finished_at,
        result, error, exit_code, stdout, stderr, requeue_of, last_error, end_code,
        traceparent)
SELECT a.id, a.action, a.action_ref, a.priority, e.status, a.attempt, a.grant_no,
       a.request_id, a.enforcement_id, a.requested_by, a.group_key, a.labels, a.parameters,
       a.not_before, a.timeout_seconds, a.cancel_requested, a.worker, a.created, a.requested_at,
       coalesce(a.started_at, e.began), CASE WHEN a.started_at > ?2
             AND unixepoch(a.started_at) - unixepoch(?2) < 5 THEN a.started_at ELSE ?2 END,
       e.result, e.error, e.exit_code,
       e.stdout, e.stderr, a.requeue_of, a.last_error,
       e.end_code, a.traceparent
  FROM (SELECT value ->> '$[0]' AS id, value ->> '$[1]' AS status, value ->> '$[2]' AS began,
               value ->> '$[3]' AS result, value ->> '$[4]' AS error,
               value ->> '$[5]' AS exit_code, value ->> '$[6]' AS stdout,
               value ->> '$[7]' AS stderr, value ->> '$[8]' AS end_code
          FROM jsonb_each(?1)) AS e
 CROSS JOIN execution_active AS a ON a.id = e.id
 WHERE true
    ON CONFLICT (id) DO NOTHING
