-- Up to ?3 operations from the number ?1 to ?2, the newest first.
SELECT o.id, o.request_id, o.kind, o.filter, o.args, o.who, o.reason, o.created,
       (SELECT count(*) FROM operation_progress AS p WHERE p.operation = o.id) AS partitions,
       (SELECT count(*) FROM operation_progress AS p
         WHERE p.operation = o.id AND p.state = 'done') AS finished,
       (SELECT coalesce(sum(p.matched), 0) FROM operation_progress AS p
         WHERE p.operation = o.id) AS matched,
       (SELECT coalesce(sum(p.done), 0) FROM operation_progress AS p WHERE p.operation = o.id) AS done,
       (SELECT coalesce(sum(p.skipped), 0) FROM operation_progress AS p
         WHERE p.operation = o.id) AS skipped
  FROM operation AS o
 WHERE o.id BETWEEN ?1 AND ?2
 ORDER BY o.id DESC
 LIMIT ?3
