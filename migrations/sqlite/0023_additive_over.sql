-- A worker whose process is gone, with everything that it ran: since when that is known, and which of its
-- grants had begun, as pairs of id and attempt. Without them nobody knows.
ALTER TABLE worker_lease ADD COLUMN over_at TEXT;
ALTER TABLE worker_lease ADD COLUMN begun TEXT;
