-- Removes what has said nothing any more for ?1 seconds, from behind the row (?2, ?3, ?4) up to the row
-- (?5, ?6, ?7) along the key: each row is looked at once, however many are removed.
DELETE FROM meter
 WHERE (partition, limit_id, key) > (?2, ?3, ?4)
   AND (partition, limit_id, key) <= (?5, ?6, ?7)
   AND expires_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
