-- The actions of the partitions ?1.
SELECT id, partition, version, spec
  FROM action
 WHERE partition IN (SELECT value FROM json_each(?1))
 ORDER BY id
