-- One operation, by its number or by its request.
SELECT o.id, o.request_id, o.kind, o.filter::text, o.args::text, o.who, o.reason, o.created,
       count(p.partition) AS partitions, count(p.partition) FILTER (WHERE p.state = 'done') AS finished,
       coalesce(sum(p.matched), 0)::bigint AS matched, coalesce(sum(p.done), 0)::bigint AS done,
       coalesce(sum(p.skipped), 0)::bigint AS skipped
FROM attune.operation o LEFT JOIN attune.operation_progress p ON p.operation = o.id
WHERE o.id = $1::bigint OR o.request_id = $2::uuid
GROUP BY o.id
