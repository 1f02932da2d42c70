-- Of which trace an execution is a part (W3C trace context), as its request said it: 55 characters. Nothing where
-- it said none.
ALTER TABLE execution_active ADD COLUMN traceparent TEXT;
ALTER TABLE execution_history ADD COLUMN traceparent TEXT;

DROP VIEW execution;
CREATE VIEW execution AS
SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels, parameters, not_before, timeout_seconds, cancel_requested,
       worker, created, requested_at, started_at, CAST(NULL AS TEXT) AS finished_at,
       CAST(NULL AS TEXT) AS result, CAST(NULL AS TEXT) AS error,
       CAST(NULL AS INTEGER) AS exit_code, CAST(NULL AS TEXT) AS stdout,
       CAST(NULL AS TEXT) AS stderr, requeue_of, last_error,
       CAST(NULL AS TEXT) AS end_code, traceparent
  FROM execution_active
UNION ALL
SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels, parameters, not_before, timeout_seconds, cancel_requested,
       worker, created, requested_at, started_at, finished_at, result,
       error, exit_code, stdout, stderr, requeue_of, last_error, end_code,
       traceparent
  FROM execution_history;
