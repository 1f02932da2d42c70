-- Ends those leases in ?2 that ?1 still holds in the epoch it names, in favour of ?3.
UPDATE partition_lease AS l
   SET owner = NULL, owner_name = NULL, wanted_owner = ?3, renewals = l.renewals + 1,
       expires_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
       updated_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  FROM (SELECT value ->> 'partition' AS partition, value ->> 'epoch' AS epoch
          FROM jsonb_each(?2)) AS h
 WHERE l.partition = h.partition AND l.epoch = h.epoch AND l.owner = ?1
