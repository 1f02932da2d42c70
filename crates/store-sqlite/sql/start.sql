-- What its worker says to have started, since when it says so: only the attempt that holds the slot, and
-- once. A slot that is kept is held by no attempt.
UPDATE execution_active AS a
   SET status = 'running', started_at = s.started_at
  FROM (SELECT value ->> '$[0]' AS id, value ->> '$[1]' AS attempt,
               value ->> '$[2]' AS started_at
          FROM jsonb_each(?1)) AS s
 WHERE a.id = s.id AND a.attempt = s.attempt AND a.status = 'requested' AND a.kept_until IS NULL
