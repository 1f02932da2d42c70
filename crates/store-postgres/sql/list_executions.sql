-- Pages by (created, id), which never change, so that rows may move into the history between
-- two pages. The session forces custom plans: a filter that is not set then costs nothing, a
-- filter on status leaves out the table that cannot have it, and the order comes from an index.
SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels::text, parameters::text, not_before, timeout_seconds,
       cancel_requested, worker, created, requested_at, started_at, finished_at, result::text,
       error, exit_code, stdout, stderr
FROM attune.execution
WHERE ($1::text IS NULL OR action = (SELECT a.id FROM attune.action a WHERE a.ref = $1::text))
  AND ($2::text[] IS NULL OR status = ANY($2::text[]))
  AND ($3::text IS NULL OR requested_by = $3::text)
  AND ($4::text IS NULL OR group_key = $4::text)
  AND ($5::timestamptz IS NULL OR (created, id) < ($5::timestamptz, $6::bigint))
ORDER BY created DESC, id DESC
LIMIT $7::bigint
