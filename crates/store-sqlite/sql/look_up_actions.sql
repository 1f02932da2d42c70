-- Those of the action refs ?1 that exist.
SELECT id, partition, version, spec
  FROM action
 WHERE ref IN (SELECT value FROM json_each(?1))
