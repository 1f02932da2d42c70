-- What a batch counts: the whole state of each, so that writing it twice is harmless.
INSERT INTO meter (partition, limit_id, key, state, expires_at, written_at)
SELECT m.value ->> 'partition', m.value ->> 'limit_id', m.value ->> 'key', m.value ->> 'state',
       m.value ->> 'expires_at', strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  FROM jsonb_each(?1) AS m
 WHERE true
    ON CONFLICT (partition, limit_id, key) DO UPDATE
   SET state = excluded.state, expires_at = excluded.expires_at, written_at = excluded.written_at
