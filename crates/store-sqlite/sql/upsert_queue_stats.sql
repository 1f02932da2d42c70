-- Snapshots of queues. An older one never overwrites a newer one.
INSERT INTO queue_stats
       (action_id, queue_length, active_count, max_concurrent, oldest_enqueued_at,
        total_enqueued, total_completed, total_cancelled, total_expired, version, lacks_key,
        last_updated)
SELECT s.value ->> 'action_id', s.value ->> 'queue_length', s.value ->> 'active_count',
       s.value ->> 'max_concurrent', s.value ->> 'oldest_enqueued_at',
       s.value ->> 'total_enqueued', s.value ->> 'total_completed',
       s.value ->> 'total_cancelled', s.value ->> 'total_expired', s.value ->> 'version',
       s.value ->> 'lacks_key',
       strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  FROM jsonb_each(?1) AS s
 WHERE true
    ON CONFLICT (action_id) DO UPDATE
   SET queue_length = excluded.queue_length, active_count = excluded.active_count,
       max_concurrent = excluded.max_concurrent,
       oldest_enqueued_at = excluded.oldest_enqueued_at,
       total_enqueued = excluded.total_enqueued, total_completed = excluded.total_completed,
       total_cancelled = excluded.total_cancelled, total_expired = excluded.total_expired,
       version = excluded.version, lacks_key = excluded.lacks_key,
       last_updated = excluded.last_updated
 WHERE excluded.version > queue_stats.version
