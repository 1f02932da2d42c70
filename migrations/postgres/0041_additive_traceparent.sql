-- Of which trace an execution is a part (W3C trace context), as its request said it: 55 characters. Nothing where
-- it said none.
ALTER TABLE attune.execution_active ADD COLUMN traceparent text;
ALTER TABLE attune.execution_history ADD COLUMN traceparent text;

CREATE OR REPLACE VIEW attune.execution AS
SELECT id, action, action_ref, status, created, requested_at, started_at,
       NULL::timestamptz AS finished_at, priority, attempt, grant_no, request_id,
       enforcement_id, requested_by, group_key, labels, parameters, not_before,
       timeout_seconds, cancel_requested, worker, NULL::json AS result, NULL::text AS error,
       NULL::integer AS exit_code, NULL::text AS stdout, NULL::text AS stderr, requeue_of, last_error,
       NULL::text AS end_code, traceparent
FROM attune.execution_active
UNION ALL
SELECT id, action, action_ref, status, created, requested_at, started_at,
       finished_at, priority, attempt, grant_no, request_id,
       enforcement_id, requested_by, group_key, labels, parameters, not_before,
       timeout_seconds, cancel_requested, worker, result, error,
       exit_code, stdout, stderr, requeue_of, last_error, end_code,
       traceparent
FROM attune.execution_history;
