-- What the default partition caught grows old too.
DELETE FROM attune.execution_history_default
WHERE finished_at < now() - $1::bigint * interval '1 microsecond'
