-- A page of what waits or holds a slot in the partitions ?1, in order, after the id ?2. The plus
-- keeps the index on the partition out of it, after which all would have to be sorted.
SELECT id, action, priority, status, attempt,
       unixepoch('now', 'subsec') - unixepoch(created, 'subsec') AS age,
       not_before, cancel_requested
  FROM execution_active
 WHERE id > ?2 AND +(id & 255) IN (SELECT value FROM json_each(?1))
 ORDER BY id
 LIMIT ?3
