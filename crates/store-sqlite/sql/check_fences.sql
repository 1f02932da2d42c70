-- The partitions of ?2 that the writer ?1 does not own in the epoch that it believes in. The
-- transaction was begun as a write, so no acquire can come between this and its commit. That the
-- lease has run out does not matter as long as nobody else has taken it.
SELECT f.value ->> 'partition' AS partition
  FROM jsonb_each(?2) AS f
  LEFT JOIN partition_lease AS l
         ON l.partition = f.value ->> 'partition'
        AND l.epoch = f.value ->> 'epoch'
        AND l.owner = ?1
 WHERE l.partition IS NULL
