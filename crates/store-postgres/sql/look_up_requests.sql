-- The hot half of the look-up: never touches the history, whose days would all be locked.
SELECT r.request_id, r.execution_id, r.digest, e.status
FROM unnest($1::uuid[]) AS asked (request_id)
JOIN attune.request r ON r.request_id = asked.request_id
LEFT JOIN attune.execution_active e ON e.id = r.execution_id
