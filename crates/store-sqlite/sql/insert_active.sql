-- Accepted executions in ?1, decided at ?2. Writing a batch twice is the same as once.
-- jsonb_each hands every element on in parsed form, so it is not parsed again for each column: 2.5 times
-- faster than json_each. A place in an array is found faster than a member by its name, and a path that
-- begins with `$` is not put together anew for each row.
INSERT INTO execution_active
       (id, action, action_ref, priority, status, attempt, grant_no, request_id, enforcement_id,
        requested_by, group_key, labels, parameters, not_before, timeout_seconds,
        created, requested_at, requeue_of, demand, cancel_requested, worker, asker,
        traceparent)
SELECT e.id, e.action, e.action_ref, e.priority, e.status, e.attempt, e.grant_no, e.request_id,
       e.enforcement_id, e.requested_by, e.group_key, e.labels, e.parameters, e.not_before,
       e.timeout_seconds, ?2,
       CASE WHEN e.status = 'requested' OR e.worker IS NOT NULL THEN ?2 END,
       e.requeue_of, e.demand, e.cancel_requested, e.worker, e.asker, e.traceparent
  FROM (SELECT value ->> '$[0]' AS id, value ->> '$[1]' AS action, value ->> '$[2]' AS action_ref,
               value ->> '$[3]' AS priority, value ->> '$[4]' AS status,
               value ->> '$[5]' AS attempt, value ->> '$[6]' AS grant_no,
               value ->> '$[7]' AS request_id, value ->> '$[8]' AS enforcement_id,
               value ->> '$[9]' AS requested_by, value ->> '$[10]' AS group_key,
               value ->> '$[11]' AS labels, value ->> '$[12]' AS parameters,
               value ->> '$[13]' AS not_before, value ->> '$[14]' AS timeout_seconds,
               value ->> '$[15]' AS requeue_of, value ->> '$[16]' AS demand,
               value ->> '$[17]' AS cancel_requested, value ->> '$[18]' AS worker,
               value ->> '$[19]' AS asker, value ->> '$[20]' AS traceparent
          FROM jsonb_each(?1)) AS e
 WHERE true
    ON CONFLICT (id) DO NOTHING
