-- How many executions an operation would be about, by all but their labels.
SELECT count(*)
FROM attune.execution_active
WHERE ($1::boolean OR status = 'queued')
  AND ($2::text IS NULL OR action = (SELECT a.id FROM attune.action a WHERE a.ref = $2::text))
  AND ($3::text IS NULL OR starts_with(action_ref, $3::text || '.'))
  AND ($4::text IS NULL OR requested_by = $4::text)
  AND ($5::smallint IS NULL OR priority = $5::smallint)
  AND ($6::bigint[] IS NULL OR id = ANY($6::bigint[]))
