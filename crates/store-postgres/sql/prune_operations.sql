-- What was asked for longer ago than $1 microseconds and is over; its parts go with it.
DELETE FROM attune.operation o
WHERE o.created < now() - $1::bigint * interval '1 microsecond'
  AND NOT EXISTS (SELECT FROM attune.operation_progress p
                  WHERE p.operation = o.id AND p.state <> 'done')
