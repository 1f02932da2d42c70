SELECT count(*) FROM queue_stats
