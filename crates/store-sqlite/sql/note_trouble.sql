-- Says for those leases in ?2 that ?1 holds in the epoch it names what keeps it from its work, and
-- for how many seconds it has. The leases themselves do not move.
UPDATE partition_lease AS l
   SET trouble = n.trouble,
       trouble_since = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || n.lasted || ' seconds'),
       trouble_epoch = CASE WHEN n.trouble IS NOT NULL THEN l.epoch END
  FROM (SELECT value ->> 'partition' AS partition, value ->> 'epoch' AS epoch,
               value ->> 'trouble' AS trouble, value ->> 'lasted' AS lasted
          FROM jsonb_each(?2)) AS n
 WHERE l.partition = n.partition AND l.epoch = n.epoch AND l.owner = ?1
