-- The attempts of what waits are raised by ?1, and what never began of them with it, of which no more than ?2 are
-- counted: no attempt of a life that was lost is granted a second time, and no try is used up.
UPDATE execution_active
   SET attempt = attempt + max(0, min(?1, ?2 - unbegun)),
       unbegun = unbegun + max(0, min(?1, ?2 - unbegun))
 WHERE status = 'queued' AND kept_until IS NULL
