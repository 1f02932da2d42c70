-- By which version of the policy set partitions decide. Versions only rise: a batch that is written again
-- late changes nothing.
INSERT INTO policy_progress (partition, set_version)
SELECT value ->> 'partition', value ->> 'set_version' FROM jsonb_each(?1) WHERE true
    ON CONFLICT (partition) DO UPDATE SET set_version = excluded.set_version
 WHERE policy_progress.set_version < excluded.set_version
