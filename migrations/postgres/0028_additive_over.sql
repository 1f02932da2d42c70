-- A worker whose process is gone, with everything that it ran: since when that is known, and which of its
-- grants had begun, as pairs of id and attempt. Without them nobody knows.
ALTER TABLE attune.worker_lease ADD COLUMN over_at timestamptz;
ALTER TABLE attune.worker_lease ADD COLUMN begun jsonb;
