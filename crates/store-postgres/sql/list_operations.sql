-- Up to $3 operations from the number $1 to $2, the newest first. Counts that nobody could have written spoil no other
-- operation.
SELECT o.id, o.request_id, o.kind, o.filter::text, o.args::text, o.who, o.reason, o.created,
       count(p.partition) AS partitions, count(p.partition) FILTER (WHERE p.state = 'done') AS finished,
       greatest(0, least(coalesce(sum(p.matched), 0), 9223372036854775807))::bigint AS matched,
       greatest(0, least(coalesce(sum(p.done), 0), 9223372036854775807))::bigint AS done,
       greatest(0, least(coalesce(sum(p.skipped), 0), 9223372036854775807))::bigint AS skipped
FROM (SELECT * FROM attune.operation WHERE id BETWEEN $1::bigint AND $2::bigint
      ORDER BY id DESC LIMIT $3::bigint) AS o
LEFT JOIN attune.operation_progress p ON p.operation = o.id
GROUP BY o.id, o.request_id, o.kind, o.filter::text, o.args::text, o.who, o.reason, o.created
ORDER BY o.id DESC
