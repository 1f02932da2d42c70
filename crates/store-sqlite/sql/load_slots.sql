-- What holds a slot in the partitions ?1, and since when its worker is lost, in seconds. The
-- status is tested in the words of the index execution_active_slot, so that only slots are read; the
-- plus keeps the index on the partition out of it.
SELECT a.id, a.action, a.priority, a.attempt, a.status, a.worker,
       CASE WHEN a.worker IS NULL THEN 0.0
            WHEN w.worker IS NULL
            THEN unixepoch('now', 'subsec') - unixepoch(a.started_at, 'subsec')
            ELSE unixepoch('now', 'subsec') - unixepoch(w.expires_at, 'subsec')
       END AS worker_lost_for,
       unixepoch('now', 'subsec') - unixepoch(a.requested_at, 'subsec') AS held_for,
       unixepoch('now', 'subsec') - unixepoch(a.started_at, 'subsec') AS running_for,
       unixepoch('now', 'subsec') - unixepoch(a.created, 'subsec') AS age,
       a.cancel_requested
  FROM execution_active AS a
  LEFT JOIN worker_lease AS w ON w.worker = a.worker
 WHERE a.status IN ('requested', 'running')
   AND +(a.id & 255) IN (SELECT value FROM json_each(?1))
