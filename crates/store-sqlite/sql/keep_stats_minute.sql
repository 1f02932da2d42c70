-- Copies the snapshots of the queues in ?1, as they are kept, into the history of this minute.
INSERT INTO queue_stats_history
       (action_id, minute, queue_length, active_count, total_enqueued, total_completed,
        total_cancelled, total_expired)
SELECT q.action_id, strftime('%Y-%m-%dT%H:%M:00.000000Z', 'now'), q.queue_length, q.active_count,
       q.total_enqueued, q.total_completed, q.total_cancelled, q.total_expired
  FROM jsonb_each(?1) AS s
 CROSS JOIN queue_stats AS q ON q.action_id = s.value ->> 'action_id'
 WHERE true
    ON CONFLICT (action_id, minute) DO UPDATE
   SET queue_length = excluded.queue_length, active_count = excluded.active_count,
       total_enqueued = excluded.total_enqueued, total_completed = excluded.total_completed,
       total_cancelled = excluded.total_cancelled, total_expired = excluded.total_expired
