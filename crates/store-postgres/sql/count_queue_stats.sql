SELECT count(*) FROM attune.queue_stats
