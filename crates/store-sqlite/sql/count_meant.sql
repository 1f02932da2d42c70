-- How many executions an operation would be about, by all but their labels.
SELECT count(*)
  FROM execution_active
 WHERE (?1 OR status = 'queued')
   AND (?2 IS NULL OR action = (SELECT a.id FROM action AS a WHERE a.ref = ?2))
   AND (?3 IS NULL OR substr(action_ref, 1, length(?3) + 1) = ?3 || '.')
   AND (?4 IS NULL OR requested_by = ?4)
   AND (?5 IS NULL OR priority = ?5)
   AND (?6 IS NULL OR id IN (SELECT value FROM json_each(?6)))
