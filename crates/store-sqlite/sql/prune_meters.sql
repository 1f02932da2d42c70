-- Removes what has said nothing any more for ?1 seconds, from behind the row (?2, ?3, ?4) up to the row
-- (?5, ?6, ?7) along the key: each row is looked at once, however many are removed. `expires_at` is by the
-- limit that was in force when the row was written: where the action has a longer one now, the row says
-- something for as long as that, and a little longer, as large limits count by slices.
DELETE FROM meter
 WHERE (partition, limit_id, key) > (?2, ?3, ?4)
   AND (partition, limit_id, key) <= (?5, ?6, ?7)
   AND expires_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
   AND NOT EXISTS (
       SELECT 1
         FROM (SELECT max(iif(meter.limit_id = 'action/' || a.ref || '/min_interval_ms',
                              a.spec ->> '$.policy.min_interval_ms' / 1000.0,
                              a.spec ->> '$.policy.rate_limit.window_seconds')) AS seconds
                 FROM action AS a
                WHERE a.ref = substr(meter.limit_id, 8, instr(substr(meter.limit_id, 8), '/') - 1)
                  AND (meter.limit_id = 'action/' || a.ref || '/min_interval_ms'
                       OR meter.limit_id || '/' LIKE 'action/' || a.ref || '/rate\_limit/%' ESCAPE '\'))
        WHERE unixepoch(meter.written_at) + seconds * 65.0 / 64.0 >= unixepoch('now') - ?1)
