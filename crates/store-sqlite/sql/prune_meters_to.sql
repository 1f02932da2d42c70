-- The last of the ?4 rows behind the row (?1, ?2, ?3): up to there prune_meters.sql goes next.
SELECT partition, limit_id, key
  FROM (SELECT partition, limit_id, key FROM meter
         WHERE (partition, limit_id, key) > (?1, ?2, ?3)
         ORDER BY partition, limit_id, key
         LIMIT ?4)
 ORDER BY partition DESC, limit_id DESC, key DESC
 LIMIT 1
