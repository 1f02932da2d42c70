-- Which executions hold a slot, so that they are found without reading those that wait: an index
-- on their status would cost every grant and every claim its HOT update. Written by the statement
-- that grants, takes back or ends; what a slot is like is read from its execution.
CREATE TABLE attune.slot (
    id     bigint PRIMARY KEY,
    action bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
INSERT INTO attune.slot (id, action)
SELECT id, action FROM attune.execution_active WHERE status IN ('requested', 'running');

-- Lists of one user or of one group. Neither ever changes.
CREATE INDEX execution_active_user ON attune.execution_active (requested_by, created DESC, id DESC)
    WHERE requested_by IS NOT NULL;
CREATE INDEX execution_active_group ON attune.execution_active (group_key, created DESC, id DESC)
    WHERE group_key IS NOT NULL;
CREATE INDEX execution_history_user
    ON attune.execution_history (requested_by, created DESC, id DESC)
    WHERE requested_by IS NOT NULL;
CREATE INDEX execution_history_group ON attune.execution_history (group_key, created DESC, id DESC)
    WHERE group_key IS NOT NULL;

-- What one partition has active, in order. The partition is the id's low byte and the place in its
-- order is above that, so no update changes what is indexed. The place and not the id, because the
-- primary key has the ids in order too, and the planner might take that.
CREATE INDEX execution_active_partition ON attune.execution_active ((id & 255), (id >> 8));
