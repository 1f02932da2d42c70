-- Removes up to ?2 rows that have said nothing any more for ?1 seconds.
DELETE FROM meter
 WHERE (partition, limit_id, key) IN (
    SELECT partition, limit_id, key FROM meter
     WHERE expires_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
     LIMIT ?2)
