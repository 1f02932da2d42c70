-- Follows commit.sql in the same transaction, where every fence held: by which version of the policy set
-- partitions decide. Versions only rise: a batch that is written again late changes nothing.
INSERT INTO attune.policy_progress AS p (partition, set_version)
SELECT unnest($1::integer[]), unnest($2::bigint[])
ON CONFLICT (partition) DO UPDATE SET set_version = EXCLUDED.set_version
WHERE p.set_version < EXCLUDED.set_version
