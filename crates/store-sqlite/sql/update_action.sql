-- Gives the action ?1 the spec ?2.
UPDATE action
   SET version = version + 1, spec = ?2, updated = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
 WHERE id = ?1
RETURNING version
