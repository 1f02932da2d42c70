-- How many wait, by priority, and how many hold a slot: of one moment.
SELECT status = 'queued' AS waits, priority, count(*)
  FROM execution_active
 GROUP BY 1, 2
 ORDER BY 2
