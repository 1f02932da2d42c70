-- What else is written of those that wait again; revoke.sql or grant.sql has come before.
UPDATE execution_active AS a
   SET not_before = p.not_before, unbegun = p.unbegun,
       last_error = coalesce(p.last_error, a.last_error)
  FROM (SELECT value ->> 'id' AS id, value ->> 'attempt' AS attempt,
               value ->> 'not_before' AS not_before, value ->> 'unbegun' AS unbegun,
               value ->> 'last_error' AS last_error
          FROM jsonb_each(?1)) AS p
 WHERE a.id = p.id AND a.attempt <= p.attempt
