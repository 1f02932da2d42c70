-- What is held of this, whether it is there to be held, and how many are held in all.
SELECT held.mode, held.since, held.who, held.reason,
       CASE $1::text WHEN 'pack' THEN EXISTS (SELECT FROM attune.pack WHERE ref = $2::text)
                     WHEN 'action' THEN EXISTS (SELECT FROM attune.action WHERE ref = $2::text)
                     ELSE true END,
       (SELECT count(*) FROM attune.pause)
FROM attune.pause_set
LEFT JOIN attune.pause AS held ON held.scope = $1::text AND held.target = $2::text
