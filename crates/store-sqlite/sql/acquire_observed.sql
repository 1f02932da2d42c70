-- Takes for ?1, for ?4 seconds, what has not moved since it was observed as ?3 says; the caller
-- has waited long enough by its own clock.
UPDATE partition_lease AS l
   SET owner = ?1, owner_name = ?2, wanted_owner = NULL, epoch = l.epoch + 1,
       renewals = l.renewals + 1,
       expires_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', ?4 || ' seconds'),
       updated_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  FROM (SELECT value ->> 'partition' AS partition, value ->> 'epoch' AS epoch,
               value ->> 'renewals' AS renewals
          FROM jsonb_each(?3)) AS o
 WHERE l.partition = o.partition AND l.epoch = o.epoch AND l.renewals = o.renewals
RETURNING partition, epoch
