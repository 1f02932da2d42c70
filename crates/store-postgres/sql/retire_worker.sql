-- Nothing runs there any more. Of what has begun only that is kept which is still granted to it.
UPDATE attune.worker_lease w SET
    ended = true, expires_at = least(w.expires_at, clock_timestamp()),
    begun = CASE WHEN $2::bigint[] IS NOT NULL THEN (
        SELECT coalesce(jsonb_agg(jsonb_build_array(e.id, e.attempt)), '[]')
        FROM unnest($2::bigint[], $3::integer[]) AS b (id, attempt)
        JOIN attune.execution_active e ON e.id = b.id
        WHERE e.attempt = b.attempt AND e.worker = w.worker)
    END
WHERE worker = $1::uuid AND NOT ended
