-- In small steps, so that no step holds its locks for long; called until nothing is left.
DELETE FROM attune.request WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM attune.request
    WHERE created < now() - $1::bigint * interval '1 microsecond'
    ORDER BY created
    LIMIT $2::bigint))
