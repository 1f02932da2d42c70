-- What is held was not resumed, and of all others that were the newest ?3 are known: counted and not by their age, or a
-- clock that is ahead once would forget them all.
DELETE FROM pause_resumed
 WHERE (scope = ?1 AND target = ?2)
    OR (scope, target) IN (
       SELECT scope, target FROM pause_resumed WHERE NOT (scope = ?1 AND target = ?2)
        ORDER BY at DESC LIMIT -1 OFFSET ?3
       )
