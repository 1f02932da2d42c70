-- What is held was not resumed, and what was resumed more than ?3 days ago is forgotten.
DELETE FROM pause_resumed
 WHERE (scope = ?1 AND target = ?2)
    OR at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?3 || ' days')
