-- Says that the target ?2 in the scope ?1, which is held still, is resumed now: after it was paused, whatever the clock
-- shows.
INSERT INTO pause_resumed (scope, target, at)
SELECT ?1, ?2, max(strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), coalesce(max(since), ''))
  FROM pause WHERE scope = ?1 AND target = ?2
