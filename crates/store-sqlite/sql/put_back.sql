-- What else is written of those that wait again, or keep their slots until they are tried again, by no worker
-- until then; revoke.sql or grant.sql has come before where they lead elsewhere.
UPDATE execution_active AS a
   SET not_before = p.not_before, unbegun = p.unbegun,
       last_error = coalesce(p.last_error, a.last_error),
       kept_until = CASE WHEN p.keeps_slot THEN p.not_before END,
       status = CASE WHEN p.keeps_slot THEN 'requested' ELSE a.status END,
       worker = CASE WHEN p.keeps_slot THEN NULL ELSE a.worker END,
       started_at = CASE WHEN p.keeps_slot THEN NULL ELSE a.started_at END
  FROM (SELECT value ->> 'id' AS id, value ->> 'attempt' AS attempt,
               value ->> 'not_before' AS not_before, value ->> 'unbegun' AS unbegun,
               value ->> 'last_error' AS last_error, value ->> 'keeps_slot' AS keeps_slot
          FROM jsonb_each(?1)) AS p
 WHERE a.id = p.id AND a.attempt <= p.attempt
