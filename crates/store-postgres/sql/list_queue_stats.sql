-- A page of snapshots, the longest queue first, after the queue $2 of the length $1 (NULL: from
-- the start); $3 is its size. Which rows it has is found before their actions are read.
WITH page AS (
    SELECT * FROM attune.queue_stats
    WHERE $1::bigint IS NULL OR queue_length < $1::bigint
       OR (queue_length = $1::bigint AND action_id > $2::bigint)
    ORDER BY queue_length DESC, action_id
    LIMIT $3::bigint)
SELECT a.ref, q.action_id, q.queue_length, q.active_count, q.max_concurrent, q.oldest_enqueued_at,
       q.total_enqueued, q.total_completed, q.total_cancelled, q.total_expired, q.last_updated, q.lacks_key,
       coalesce(a.spec ->> 'pool', 'default') AS pool,
       a.spec #>> '{policy,queue}' AS bounds,
       coalesce(a.spec #>> '{policy,concurrency,on_limit}', '') IN ('replace_waiting', 'cancel_running')
           AS replaces,
       coalesce(a.spec #> '{policy,concurrency,group_by}', a.spec #> '{policy,concurrency,cost}')
           IS NOT NULL AS grouped,
       coalesce(a.spec #> '{policy,rate_limit}', a.spec #> '{policy,min_interval_ms}')
           IS NOT NULL AS counted
FROM page q JOIN attune.action a ON a.id = q.action_id
ORDER BY q.queue_length DESC, q.action_id
