-- Old versions; the newest of each policy is in force, however old it is.
DELETE FROM attune.policy p
WHERE p.changed_at < now() - $1::bigint * interval '1 microsecond'
  AND EXISTS (
    SELECT FROM attune.policy n
    WHERE n.scope = p.scope AND n.target = p.target AND n.version > p.version)
