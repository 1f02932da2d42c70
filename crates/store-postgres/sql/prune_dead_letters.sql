-- What came too long ago, and the oldest of what is too much. The length of a body is known
-- without reading it.
DELETE FROM attune.dead_letter WHERE id IN (
    SELECT id FROM (
        SELECT id, received_at,
               sum(octet_length(body) + $3::bigint) OVER (ORDER BY received_at DESC, id DESC) AS total
        FROM attune.dead_letter) AS d
    WHERE received_at < now() - $1::bigint * interval '1 microsecond' OR total > $2::bigint)
