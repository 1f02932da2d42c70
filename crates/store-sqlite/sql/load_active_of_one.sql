-- A page of what waits or holds a slot in the partition ?1, in order, after the id ?2: along the
-- index on the partition, so that nobody else's rows are read.
SELECT id, action, priority, status, attempt,
       unixepoch('now', 'subsec') - unixepoch(created, 'subsec') AS age,
       not_before, cancel_requested
  FROM execution_active
 WHERE id & 255 = ?1 AND id > ?2
 ORDER BY id
 LIMIT ?3
