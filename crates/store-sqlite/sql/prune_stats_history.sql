-- Removes up to ?2 minutes of queues that are older than ?1 seconds.
DELETE FROM queue_stats_history
 WHERE (action_id, minute) IN (
    SELECT action_id, minute FROM queue_stats_history
     WHERE minute < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
     LIMIT ?2)
