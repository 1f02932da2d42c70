-- Extends by ?3 seconds those leases in ?2 that ?1 holds in the epoch it names. One that has run
-- out but was not taken is as good as held: its epoch is unchanged.
UPDATE partition_lease AS l
   SET renewals = l.renewals + 1,
       expires_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', ?3 || ' seconds'),
       updated_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  FROM (SELECT value ->> 'partition' AS partition, value ->> 'epoch' AS epoch
          FROM jsonb_each(?2)) AS h
 WHERE l.partition = h.partition AND l.epoch = h.epoch AND l.owner = ?1
RETURNING partition
