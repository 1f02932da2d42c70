SELECT attune.make_history_days($1::integer)
