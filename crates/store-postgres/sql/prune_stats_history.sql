-- In small steps, so that no step holds its locks for long; called until nothing is left.
DELETE FROM attune.queue_stats_history WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM attune.queue_stats_history
    WHERE minute < now() - $1::bigint * interval '1 microsecond'
    LIMIT $2::bigint))
