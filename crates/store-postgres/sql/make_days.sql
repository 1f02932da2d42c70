SELECT attune.make_days($1::text, $2::integer)
