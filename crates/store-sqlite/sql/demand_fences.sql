-- Fails if the writer ?1 does not own a partition of ?2 in the epoch that it believes in, and so ends the command that it
-- begins: what follows in it is not run. SQLite has no other way to fail outside of a trigger than a function that
-- cannot read its argument. Which partitions it is, check_fences.sql tells in the same transaction.
SELECT json('not owned: ' || (f.value ->> 'partition'))
  FROM jsonb_each(?2) AS f
  LEFT JOIN partition_lease AS l
         ON l.partition = f.value ->> 'partition'
        AND l.epoch = f.value ->> 'epoch'
        AND l.owner = ?1
 WHERE l.partition IS NULL
