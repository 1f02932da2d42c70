SELECT principal FROM attune.worker_lease WHERE worker = $1::uuid
