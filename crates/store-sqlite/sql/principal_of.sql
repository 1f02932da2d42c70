SELECT principal FROM worker_lease WHERE worker = ?1
