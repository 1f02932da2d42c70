-- Up to ?3 operations from the number ?1 to ?2, the newest first. Counts that nobody could have written spoil no other
-- operation.
SELECT o.id, o.request_id, o.kind, o.filter, o.args, o.who, o.reason, o.created,
       (SELECT count(*) FROM operation_progress AS p WHERE p.operation = o.id) AS partitions,
       (SELECT count(*) FROM operation_progress AS p
         WHERE p.operation = o.id AND p.state = 'done') AS finished,
       (SELECT max(0, CAST(min(total(p.matched), 9.2e18) AS INTEGER)) FROM operation_progress AS p
         WHERE p.operation = o.id) AS matched,
       (SELECT max(0, CAST(min(total(p.done), 9.2e18) AS INTEGER)) FROM operation_progress AS p WHERE p.operation = o.id) AS done,
       (SELECT max(0, CAST(min(total(p.skipped), 9.2e18) AS INTEGER)) FROM operation_progress AS p
         WHERE p.operation = o.id) AS skipped
  FROM operation AS o
 WHERE o.id BETWEEN ?1 AND ?2
 ORDER BY o.id DESC
 LIMIT ?3
