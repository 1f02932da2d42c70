-- The ended execution that this one runs again, when a dead letter was put back.
ALTER TABLE attune.execution_active ADD COLUMN requeue_of bigint;
ALTER TABLE attune.execution_history ADD COLUMN requeue_of bigint;

CREATE OR REPLACE VIEW attune.execution AS
SELECT id, action, action_ref, status, created, requested_at, started_at,
       NULL::timestamptz AS finished_at, priority, attempt, grant_no, request_id,
       enforcement_id, requested_by, group_key, labels, parameters, not_before,
       timeout_seconds, cancel_requested, worker, NULL::json AS result, NULL::text AS error,
       NULL::integer AS exit_code, NULL::text AS stdout, NULL::text AS stderr, requeue_of
FROM attune.execution_active
UNION ALL
SELECT id, action, action_ref, status, created, requested_at, started_at,
       finished_at, priority, attempt, grant_no, request_id,
       enforcement_id, requested_by, group_key, labels, parameters, not_before,
       timeout_seconds, cancel_requested, worker, result, error,
       exit_code, stdout, stderr, requeue_of
FROM attune.execution_history;
