-- One row per executor process, renewed by it: among those that are alive the partitions are
-- shared. It guards nothing (the epochs of the partitions do), so it may be renewed late.
CREATE TABLE attune.executor_lease (
    executor   uuid PRIMARY KEY,
    name       text NOT NULL,
    expires_at timestamptz NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
