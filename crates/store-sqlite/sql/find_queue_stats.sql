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
  FROM queue_stats AS s
  JOIN action AS a ON a.id = s.action_id
 WHERE s.action_id = ?1
