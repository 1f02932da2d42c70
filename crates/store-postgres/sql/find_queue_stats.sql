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
FROM attune.queue_stats q JOIN attune.action a ON a.id = q.action_id
WHERE q.action_id = $1::bigint
