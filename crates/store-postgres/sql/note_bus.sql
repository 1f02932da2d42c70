-- The first caller decides; a second one waits here for the first.
UPDATE attune.cluster SET bus = $1 WHERE bus IS NULL
