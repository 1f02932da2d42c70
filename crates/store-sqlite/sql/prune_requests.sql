-- Removes up to ?2 requests that are older than ?1 seconds. They lie in the order in which they
-- came: looking at the first ?2 is enough, and costs little when there is nothing to remove.
DELETE FROM request
 WHERE n IN (
    SELECT n FROM (SELECT n, created FROM request ORDER BY n LIMIT ?2)
     WHERE created < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds'))
