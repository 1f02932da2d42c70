-- A page of executions, the newest first.
-- ?1 and ?2 are the place after which it starts, ?3 the statuses or [], ?4 the user and ?5 the
-- group or NULL. Each arm has a limit of its own (?6, ?7), 0 when its table cannot hold any of
-- the statuses, and reads along an index that is already in order; ?8 is the size of the page.
-- ?9 to ?12: whether parameters, result, stdout and stderr are read; they can be long.
-- The last one: the priorities or [].
SELECT * FROM (
    SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id,
           enforcement_id, requested_by, group_key, labels,
           CASE WHEN ?9 THEN parameters END AS parameters, not_before,
           timeout_seconds, cancel_requested, worker, created, requested_at, started_at,
           NULL AS finished_at, NULL AS result, NULL AS error, NULL AS exit_code,
           NULL AS stdout, NULL AS stderr, requeue_of, last_error, NULL AS end_code,
           traceparent
      FROM execution_active
     WHERE (created, id) < (?1, ?2)
       AND (?3 = '[]' OR status IN (SELECT value FROM json_each(?3)))
       AND (?4 IS NULL OR requested_by = ?4)
       AND (?5 IS NULL OR group_key = ?5)
       AND (?13 = '[]' OR priority IN (SELECT value FROM json_each(?13)))
     ORDER BY created DESC, id DESC
     LIMIT ?6)
UNION ALL
SELECT * FROM (
    SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id,
           enforcement_id, requested_by, group_key, labels,
           CASE WHEN ?9 THEN parameters END AS parameters, not_before,
           timeout_seconds, cancel_requested, worker, created, requested_at, started_at,
           finished_at, CASE WHEN ?10 THEN result END AS result, error, exit_code,
           CASE WHEN ?11 THEN stdout END AS stdout, CASE WHEN ?12 THEN stderr END AS stderr,
           requeue_of, last_error, end_code, traceparent
      FROM execution_history
     WHERE (created, id) < (?1, ?2)
       AND (?3 = '[]' OR status IN (SELECT value FROM json_each(?3)))
       AND (?4 IS NULL OR requested_by = ?4)
       AND (?5 IS NULL OR group_key = ?5)
       AND (?13 = '[]' OR priority IN (SELECT value FROM json_each(?13)))
     ORDER BY created DESC, id DESC
     LIMIT ?7)
 ORDER BY created DESC, id DESC
 LIMIT ?8
