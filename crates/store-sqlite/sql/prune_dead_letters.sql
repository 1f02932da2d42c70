-- Removes what came more than ?1 seconds ago, and the oldest of what is more than ?2 bytes; a
-- letter counts ?3 bytes beside its body, whose length is known without reading it.
DELETE FROM dead_letter
 WHERE id IN (
    SELECT id FROM (
        SELECT id, received_at,
               sum(length(body) + ?3) OVER (ORDER BY received_at DESC, id DESC) AS total
          FROM dead_letter)
     WHERE received_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
        OR total > ?2)
