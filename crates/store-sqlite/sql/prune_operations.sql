-- Up to ?2 of what was asked for longer ago than ?1 seconds and is over; its parts go with it.
DELETE FROM operation
 WHERE id IN (
    SELECT o.id FROM operation AS o
     WHERE o.created < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
       AND NOT EXISTS (SELECT 1 FROM operation_progress AS p
                        WHERE p.operation = o.id AND p.state <> 'done')
     LIMIT ?2)
