-- What is held of the target ?2 in the scope ?1, whether it is there to be held, and how many are held
-- in all.
SELECT held.mode, held.since, held.who, held.reason,
       CASE ?1 WHEN 'pack' THEN EXISTS (SELECT 1 FROM pack WHERE ref = ?2)
               WHEN 'action' THEN EXISTS (SELECT 1 FROM action WHERE ref = ?2)
               ELSE 1 END AS is_there,
       (SELECT count(*) FROM pause) AS many
  FROM pause_set
  LEFT JOIN pause AS held ON held.scope = ?1 AND held.target = ?2
