SELECT attune.drop_day($1::text, now() - $2::bigint * interval '1 microsecond')
