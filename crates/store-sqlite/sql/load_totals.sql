-- The totals of the queues in the partitions ?1.
SELECT t.action, t.enqueued, t.completed, t.cancelled, t.expired
  FROM queue_totals AS t
  JOIN action AS a ON a.id = t.action
 WHERE a.partition IN (SELECT value FROM json_each(?1))
 ORDER BY t.action
