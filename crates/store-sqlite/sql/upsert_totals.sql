-- The totals of the queues that a batch changed: absolute, so that writing them twice is harmless.
INSERT INTO queue_totals (action, enqueued, completed, cancelled, expired)
SELECT t.value ->> 'action', t.value ->> 'enqueued', t.value ->> 'completed',
       t.value ->> 'cancelled', t.value ->> 'expired'
  FROM jsonb_each(?1) AS t
 WHERE true
    ON CONFLICT (action) DO UPDATE
   SET enqueued = excluded.enqueued, completed = excluded.completed,
       cancelled = excluded.cancelled, expired = excluded.expired
