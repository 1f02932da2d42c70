-- A page of snapshots, the longest queue first, after the queue ?2 of the length ?1 (NULL: from
-- the start); ?3 is its size. Which rows it has is found before their actions are read.
WITH page AS (
    SELECT * FROM queue_stats
     WHERE ?1 IS NULL OR queue_length < ?1 OR (queue_length = ?1 AND action_id > ?2)
     ORDER BY queue_length DESC, action_id
     LIMIT ?3)
SELECT a.ref, s.action_id, s.queue_length, s.active_count, s.max_concurrent,
       s.oldest_enqueued_at, s.total_enqueued, s.total_completed, s.total_cancelled,
       s.total_expired, s.last_updated, s.lacks_key,
       coalesce(json_extract(a.spec, '$.pool'), 'default') AS pool,
       json_extract(a.spec, '$.policy.queue') AS bounds,
       coalesce(json_extract(a.spec, '$.policy.concurrency.on_limit'), '')
           IN ('replace_waiting', 'cancel_running') AS replaces,
       coalesce(json_extract(a.spec, '$.policy.concurrency.group_by'),
                json_extract(a.spec, '$.policy.concurrency.cost')) IS NOT NULL AS grouped,
       coalesce(json_extract(a.spec, '$.policy.rate_limit'),
                json_extract(a.spec, '$.policy.min_interval_ms')) IS NOT NULL AS counted
  FROM page AS s
  JOIN action AS a ON a.id = s.action_id
 ORDER BY s.queue_length DESC, s.action_id
