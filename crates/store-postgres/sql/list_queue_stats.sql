SELECT a.ref, q.action_id, q.queue_length, q.active_count, q.max_concurrent, q.oldest_enqueued_at,
       q.total_enqueued, q.total_completed, q.total_cancelled, q.total_expired, q.last_updated
FROM attune.queue_stats q JOIN attune.action a ON a.id = q.action_id
ORDER BY q.queue_length DESC, q.action_id
