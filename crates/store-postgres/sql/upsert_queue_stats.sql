-- An older version never overwrites a newer one. The caller sends each queue once, sorted. What was
-- written goes into the history of its minute as well.
WITH written AS (
    INSERT INTO attune.queue_stats AS q (
        action_id, queue_length, active_count, max_concurrent, oldest_enqueued_at, total_enqueued,
        total_completed, total_cancelled, total_expired, version, lacks_key, last_updated)
    SELECT s.*, now()
    FROM unnest(
        $1::bigint[], $2::bigint[], $3::bigint[], $4::integer[], $5::timestamptz[], $6::bigint[],
        $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::text[]) AS s
    ON CONFLICT (action_id) DO UPDATE SET
        queue_length = excluded.queue_length, active_count = excluded.active_count,
        max_concurrent = excluded.max_concurrent, oldest_enqueued_at = excluded.oldest_enqueued_at,
        total_enqueued = excluded.total_enqueued, total_completed = excluded.total_completed,
        total_cancelled = excluded.total_cancelled, total_expired = excluded.total_expired,
        version = excluded.version, lacks_key = excluded.lacks_key, last_updated = excluded.last_updated
    WHERE q.version < excluded.version
    RETURNING action_id, queue_length, active_count, total_enqueued, total_completed,
              total_cancelled, total_expired
)
INSERT INTO attune.queue_stats_history (
    action_id, minute, queue_length, active_count, total_enqueued, total_completed,
    total_cancelled, total_expired)
SELECT action_id, date_trunc('minute', now()), queue_length, active_count, total_enqueued,
       total_completed, total_cancelled, total_expired
FROM written
ON CONFLICT (action_id, minute) DO UPDATE SET
    queue_length = excluded.queue_length, active_count = excluded.active_count,
    total_enqueued = excluded.total_enqueued, total_completed = excluded.total_completed,
    total_cancelled = excluded.total_cancelled, total_expired = excluded.total_expired
