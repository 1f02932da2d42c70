-- Why the last try of an execution ended that was followed by another, and how many of its grants never
-- began and so were no tries. `not_before` of a row that has it says until when it waits to be tried again.
ALTER TABLE execution_active ADD COLUMN unbegun INTEGER NOT NULL DEFAULT 0;
ALTER TABLE execution_active ADD COLUMN last_error TEXT;
ALTER TABLE execution_history ADD COLUMN last_error TEXT;

DROP VIEW execution;
CREATE VIEW execution AS
SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels, parameters, not_before, timeout_seconds, cancel_requested,
       worker, created, requested_at, started_at, CAST(NULL AS TEXT) AS finished_at,
       CAST(NULL AS TEXT) AS result, CAST(NULL AS TEXT) AS error,
       CAST(NULL AS INTEGER) AS exit_code, CAST(NULL AS TEXT) AS stdout,
       CAST(NULL AS TEXT) AS stderr, requeue_of, last_error
  FROM execution_active
UNION ALL
SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels, parameters, not_before, timeout_seconds, cancel_requested,
       worker, created, requested_at, started_at, finished_at, result,
       error, exit_code, stdout, stderr, requeue_of, last_error
  FROM execution_history;
