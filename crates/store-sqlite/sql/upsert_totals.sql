-- The totals of the queues that a batch changed: absolute, so that writing them twice is harmless.
INSERT INTO queue_totals (action, enqueued, completed, cancelled, expired)
SELECT t.action, t.enqueued, t.completed, t.cancelled, t.expired
  FROM (SELECT value ->> '$[0]' AS action, value ->> '$[1]' AS enqueued,
               value ->> '$[2]' AS completed, value ->> '$[3]' AS cancelled,
               value ->> '$[4]' AS expired
          FROM jsonb_each(?1)) AS t
 WHERE true
    ON CONFLICT (action) DO UPDATE
   SET enqueued = excluded.enqueued, completed = excluded.completed,
       cancelled = excluded.cancelled, expired = excluded.expired
