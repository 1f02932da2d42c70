-- First of all: whoever changes the set holds this row until the commit, so that versions follow the
-- order of the commits, and no action is applied meanwhile (share_policies.sql).
UPDATE attune.policy_set SET version = version + 1 RETURNING version
