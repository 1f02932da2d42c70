-- Whether the lease of the worker ?1 holds.
SELECT EXISTS (SELECT 1 FROM worker_lease
                WHERE worker = ?1 AND NOT ended)
