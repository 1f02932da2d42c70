-- Up to ?3 executions of the action ?1 that hold a slot, after the id ?2, with their workers. The
-- status is tested in the words of the index execution_active_slot.
SELECT a.id, a.attempt, a.status, a.requested_at, a.started_at, a.cancel_requested, a.worker,
       w.name, w.pool,
       unixepoch('now', 'subsec') - unixepoch(a.requested_at, 'subsec') AS held_for,
       unixepoch('now', 'subsec') - unixepoch(w.renewed_at, 'subsec') AS seen_ago,
       unixepoch(coalesce(w.expires_at, a.started_at, a.requested_at), 'subsec')
           - unixepoch('now', 'subsec') AS remaining
  FROM execution_active AS a
  LEFT JOIN worker_lease AS w ON w.worker = a.worker
 WHERE a.action = ?1 AND a.id > ?2 AND a.status IN ('requested', 'running')
 ORDER BY a.id
 LIMIT ?3
