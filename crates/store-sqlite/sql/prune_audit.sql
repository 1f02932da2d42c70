-- Removes up to ?2 entries of whole months that were over ?1 seconds ago, and are older than a month: the table
-- refuses to lose younger ones. They go in the order in which they came, so that the chain keeps its end; one from a
-- moment when the clock was ahead goes with the first behind it that is old enough.
WITH bound AS (
    SELECT min(strftime('%Y-%m-01T00:00:00.000000Z', 'now', '-' || ?1 || ' seconds'),
               strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-31 days')) AS at
),
judged AS (
    SELECT l.id, l.at < bound.at AS is_old,
           min(l.at < bound.at OR l.at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')) OVER (ORDER BY l.id) AS may_go
      FROM (SELECT id, at FROM audit_log ORDER BY id LIMIT ?2) AS l, bound
)
DELETE FROM audit_log WHERE id <= (SELECT max(id) FROM judged WHERE may_go AND is_old)
