-- A worker has ended its lease, unless somebody has, or its process is gone ($4). Of what has begun only that is kept which is still granted to it: the
-- list of a worker may name much that was settled long ago.
UPDATE attune.worker_lease w SET
    ended = true, expires_at = least(w.expires_at, clock_timestamp()),
    over_at = CASE WHEN $4::boolean THEN coalesce(w.over_at, clock_timestamp()) ELSE w.over_at END,
    begun = CASE
        WHEN w.over_at IS NOT NULL OR w.begun IS NOT NULL THEN w.begun
        WHEN $2::bigint[] IS NOT NULL THEN (
            SELECT coalesce(jsonb_agg(jsonb_build_array(e.id, e.attempt)), '[]')
            FROM unnest($2::bigint[], $3::integer[]) AS b (id, attempt)
            JOIN attune.execution_active e ON e.id = b.id
            WHERE e.attempt = b.attempt AND e.worker = w.worker)
    END
WHERE worker = $1::uuid AND ($4::boolean OR NOT ended)
RETURNING 1
