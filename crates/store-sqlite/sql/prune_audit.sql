-- Removes up to ?2 entries of whole months that were over ?1 seconds ago, and are older than a month: the table
-- refuses to lose younger ones. They lie in the order in which they came.
DELETE FROM audit_log
 WHERE id IN (
    SELECT id FROM (SELECT id, at FROM audit_log ORDER BY id LIMIT ?2)
     WHERE at < strftime('%Y-%m-01T00:00:00.000000Z', 'now', '-' || ?1 || ' seconds')
       AND at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-31 days'))
