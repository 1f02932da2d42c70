-- Dead letters that were not put back. The history is one table.
SELECT count(*) FROM dead_letter WHERE requeued_at IS NULL
