SELECT attune.prune_audit(now() - $1::bigint * interval '1 microsecond', $2::bigint)
