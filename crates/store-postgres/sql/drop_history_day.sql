SELECT attune.drop_history_day(now() - $1::bigint * interval '1 microsecond')
