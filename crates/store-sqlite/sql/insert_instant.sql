-- Executions that were accepted and ended in the same round, in ?1, decided at ?2: what
-- insert_active.sql takes of each, and its outcome.
INSERT INTO execution_history
       (id, action, action_ref, priority, status, attempt, grant_no, request_id, enforcement_id,
        requested_by, group_key, labels, parameters, not_before, timeout_seconds,
        cancel_requested, created, requested_at, finished_at,
        result, error, exit_code, stdout, stderr, requeue_of, end_code,
        traceparent)
SELECT e.id, e.action, e.action_ref, e.priority, e.status, e.attempt, e.grant_no, e.request_id,
       e.enforcement_id, e.requested_by, e.group_key, e.labels, e.parameters, e.not_before,
       e.timeout_seconds, 0, ?2, CASE WHEN e.attempt > 0 THEN ?2 END, ?2,
       e.result, e.error, e.exit_code, e.stdout, e.stderr, e.requeue_of, e.end_code,
       e.traceparent
  FROM (SELECT value ->> '$[0]' AS id, value ->> '$[1]' AS action, value ->> '$[2]' AS action_ref,
               value ->> '$[3]' AS priority, value ->> '$[4]' AS status,
               value ->> '$[5]' AS attempt, value ->> '$[6]' AS grant_no,
               value ->> '$[7]' AS request_id, value ->> '$[8]' AS enforcement_id,
               value ->> '$[9]' AS requested_by, value ->> '$[10]' AS group_key,
               value ->> '$[11]' AS labels, value ->> '$[12]' AS parameters,
               value ->> '$[13]' AS not_before, value ->> '$[14]' AS timeout_seconds,
               value ->> '$[15]' AS requeue_of, value ->> '$[16]' AS demand,
               value ->> '$[17]' AS cancel_requested, value ->> '$[18]' AS worker,
               value ->> '$[20]' AS traceparent, value ->> '$[21]' AS result,
               value ->> '$[22]' AS error,
               value ->> '$[23]' AS exit_code, value ->> '$[24]' AS stdout,
               value ->> '$[25]' AS stderr, value ->> '$[26]' AS end_code
          FROM jsonb_each(?1)) AS e
 WHERE true
    ON CONFLICT (id) DO NOTHING
