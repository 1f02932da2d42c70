-- What is open in these partitions, along the index of what is open.
SELECT p.operation, p.partition, p.upto, p.cursor, p.matched, p.done, p.skipped, o.kind, o.filter,
       o.args
  FROM operation_progress AS p JOIN operation AS o ON o.id = p.operation
 WHERE p.partition IN (SELECT value FROM json_each(?1)) AND p.state <> 'done'
 ORDER BY p.partition, p.operation
