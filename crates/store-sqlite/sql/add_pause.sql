-- Holds the target ?2 in the scope ?1; since when it was held before, if the mode stays the same.
INSERT INTO pause AS held (scope, target, mode, since, who, reason)
VALUES (?1, ?2, ?3, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), ?4, ?5)
    ON CONFLICT (scope, target) DO UPDATE SET
       since = CASE WHEN held.mode = excluded.mode THEN held.since ELSE excluded.since END,
       mode = excluded.mode, who = excluded.who, reason = excluded.reason
RETURNING since
