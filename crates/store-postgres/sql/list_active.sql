-- What waits or holds a slot; the history's rows all have a time of their end, which leaves it out.
-- Pages by (created, id), which never change, so that rows may move into the history between
-- two pages. The session forces custom plans: a filter that is not set then costs nothing, and the
-- order comes from an index.
-- $8 to $11: whether parameters, result, stdout and stderr are read; they can be long.
SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels::text,
       CASE WHEN $8::boolean THEN parameters::text END AS parameters, not_before, timeout_seconds,
       cancel_requested, worker, created, requested_at, started_at, finished_at,
       CASE WHEN $9::boolean THEN result::text END AS result, error, exit_code,
       CASE WHEN $10::boolean THEN stdout END AS stdout,
       CASE WHEN $11::boolean THEN stderr END AS stderr, requeue_of,
       last_error, end_code,
       traceparent
FROM attune.execution
WHERE ($1::text IS NULL OR action = (SELECT a.id FROM attune.action a WHERE a.ref = $1::text))
  AND ($2::text[] IS NULL OR status = ANY($2::text[]))
  AND ($3::text IS NULL OR requested_by = $3::text)
  AND ($4::text IS NULL OR group_key = $4::text)
  AND ($12::smallint[] IS NULL OR priority = ANY($12::smallint[]))
  AND ($5::timestamptz IS NULL OR (created, id) < ($5::timestamptz, $6::bigint))
  AND finished_at IS NULL
ORDER BY created DESC, id DESC
LIMIT $7::bigint
