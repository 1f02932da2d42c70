-- Takes slots back: the executions wait again, at their old place.
UPDATE execution_active AS a
   SET status = 'queued', attempt = r.attempt, cancel_requested = r.cancel_requested,
       worker = NULL, started_at = NULL
  FROM (SELECT value ->> '$[0]' AS id, value ->> '$[1]' AS attempt,
               value ->> '$[3]' AS cancel_requested
          FROM jsonb_each(?1)) AS r
 WHERE a.id = r.id AND a.attempt <= r.attempt
