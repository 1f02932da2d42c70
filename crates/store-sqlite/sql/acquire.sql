-- Takes the partitions in ?3 that nobody or the asker itself owns, for ?4 seconds; no clock is asked.
-- SQLite has one writer at a time, so of two that try, the second sees what the first has written.
-- What was handed over to somebody else is left to that one: who has seen it lie there takes it as
-- it was observed.
UPDATE partition_lease
   SET owner = ?1, owner_name = ?2, wanted_owner = NULL, epoch = epoch + 1, renewals = renewals + 1,
       expires_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', ?4 || ' seconds'),
       updated_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
 WHERE partition IN (SELECT value FROM json_each(?3))
   AND (owner IS NULL OR owner = ?1)
   AND (wanted_owner IS NULL OR wanted_owner = ?1)
RETURNING partition, epoch
