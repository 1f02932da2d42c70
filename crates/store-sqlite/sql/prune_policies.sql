-- Removes up to ?2 versions of policies that are older than ?1 seconds; the newest of each policy is
-- in force, however old it is.
DELETE FROM policy
 WHERE id IN (
    SELECT p.id FROM policy AS p
     WHERE p.changed_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
       AND EXISTS (SELECT 1 FROM policy AS n
                    WHERE n.scope = p.scope AND n.target = p.target AND n.version > p.version)
     LIMIT ?2)
