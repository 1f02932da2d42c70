-- Takes the partitions in ?3 that nobody owns for ?4 seconds. SQLite has one writer at a time,
-- so of two that try, the second sees what the first has written.
UPDATE partition_lease
   SET owner = ?1, owner_name = ?2, epoch = epoch + 1,
       expires_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', ?4 || ' seconds'),
       updated_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
 WHERE partition IN (SELECT value FROM json_each(?3))
   AND (owner IS NULL OR expires_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
RETURNING partition, epoch
