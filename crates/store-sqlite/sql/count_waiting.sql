-- How many wait, of each action of the partitions ?1: along the index on (action, created), so
-- that nothing is sorted.
SELECT action, count(*) AS waiting
  FROM execution_active
 WHERE status = 'queued' AND +(id & 255) IN (SELECT value FROM json_each(?1))
 GROUP BY action
