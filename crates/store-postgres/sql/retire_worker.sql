UPDATE attune.worker_lease SET ended = true, expires_at = least(expires_at, clock_timestamp())
WHERE worker = $1::uuid AND NOT ended
