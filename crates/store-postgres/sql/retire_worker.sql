UPDATE attune.worker_lease SET expires_at = clock_timestamp()
WHERE worker = $1::uuid AND expires_at > clock_timestamp()
