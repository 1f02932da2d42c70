-- Only the owner of the tables may; see the migration 0040.
UPDATE attune.audit_retention SET days = $1::integer WHERE days <> $1::integer
