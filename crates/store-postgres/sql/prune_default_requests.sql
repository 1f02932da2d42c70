-- As for the history.
DELETE FROM attune.request_default
WHERE created < now() - $1::bigint * interval '1 microsecond'
