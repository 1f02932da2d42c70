-- The rare half: where executions ended that are not active any more. None ended before it was
-- accepted, so only the days since then are asked, and locked; the day before that, and what is to
-- come, are for clocks that were set.
SELECT id, status FROM attune.ended(
    $1::bigint[], least($2::timestamptz, now()) - interval '1 day', 'infinity')
