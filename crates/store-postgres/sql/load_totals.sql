SELECT t.action, t.enqueued, t.completed, t.cancelled, t.expired
FROM attune.queue_totals t JOIN attune.action a ON a.id = t.action
WHERE a.partition = ANY($1::integer[])
