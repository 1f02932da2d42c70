-- How far operations are, as it is then and not by how much it changed, so that a batch that is written
-- twice counts once.
UPDATE operation_progress AS p
   SET upto = w.upto, cursor = w.cursor, matched = w.matched, done = w.done, skipped = w.skipped,
       state = w.state
  FROM (SELECT value ->> 'operation' AS operation, value ->> 'partition' AS partition,
               value ->> 'upto' AS upto, value ->> 'cursor' AS cursor,
               value ->> 'matched' AS matched, value ->> 'done' AS done,
               value ->> 'skipped' AS skipped, value ->> 'state' AS state
          FROM jsonb_each(?1)) AS w
 WHERE p.operation = w.operation AND p.partition = w.partition
