-- Why the last try of an execution ended that was followed by another, and how many of its grants never
-- began and so were no tries. `not_before` of a row that has it says until when it waits to be tried again.
ALTER TABLE attune.execution_active ADD COLUMN unbegun integer NOT NULL DEFAULT 0;
ALTER TABLE attune.execution_active ADD COLUMN last_error text;
ALTER TABLE attune.execution_history ADD COLUMN last_error text;

CREATE OR REPLACE VIEW attune.execution AS
SELECT id, action, action_ref, status, created, requested_at, started_at,
       NULL::timestamptz AS finished_at, priority, attempt, grant_no, request_id,
       enforcement_id, requested_by, group_key, labels, parameters, not_before,
       timeout_seconds, cancel_requested, worker, NULL::json AS result, NULL::text AS error,
       NULL::integer AS exit_code, NULL::text AS stdout, NULL::text AS stderr, requeue_of, last_error
FROM attune.execution_active
UNION ALL
SELECT id, action, action_ref, status, created, requested_at, started_at,
       finished_at, priority, attempt, grant_no, request_id,
       enforcement_id, requested_by, group_key, labels, parameters, not_before,
       timeout_seconds, cancel_requested, worker, result, error,
       exit_code, stdout, stderr, requeue_of, last_error
FROM attune.execution_history;
