-- Whose life a worker is that was registered with a key: nobody else may renew or end it.
ALTER TABLE worker_lease ADD COLUMN principal TEXT;
