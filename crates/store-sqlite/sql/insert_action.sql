-- A new action: its ref, its pack's ref, its partition and its spec.
INSERT INTO action (ref, pack, partition, version, spec, created, updated)
SELECT ?1, p.id, ?3, 1, ?4, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
       strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  FROM pack AS p
 WHERE p.ref = ?2
RETURNING id
