-- First of all: whoever changes the set holds this row until the commit, so that versions follow the
-- order of the commits.
UPDATE attune.pause_set SET version = version + 1 RETURNING version
