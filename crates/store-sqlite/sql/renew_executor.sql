-- Starts or extends the presence of the executor ?1 by ?3 seconds.
INSERT INTO executor_lease (executor, name, expires_at, started_at, cut_off)
VALUES (?1, ?2, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', ?3 || ' seconds'),
        strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), ?4)
    ON CONFLICT (executor) DO UPDATE
   SET name = excluded.name, expires_at = excluded.expires_at, cut_off = excluded.cut_off,
       renewals = executor_lease.renewals + 1
