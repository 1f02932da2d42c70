-- A page of the partition ?1 along the primary key, after (?2, ?3).
SELECT limit_id, key, state, written_at
  FROM meter
 WHERE partition = ?1 AND (limit_id, key) > (?2, ?3)
 ORDER BY limit_id, key
 LIMIT ?4
