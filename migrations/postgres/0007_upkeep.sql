-- What grows is bounded, and each step of the upkeep stands alone.

-- The ranges of a block range index stay as wide as they ever were, so after a day of deletes and
-- inserts every look for old rows read the whole table. Rows arrive in the order of `created`, so
-- an entry of this index costs next to nothing.
DROP INDEX attune.request_created;
CREATE INDEX request_created ON attune.request (created);

-- The last snapshot of each minute in which a queue changed, for charts.
CREATE TABLE attune.queue_stats_history (
    action_id       bigint NOT NULL,
    minute          timestamptz NOT NULL,
    queue_length    bigint NOT NULL,
    active_count    bigint NOT NULL,
    total_enqueued  bigint NOT NULL,
    total_completed bigint NOT NULL,
    total_cancelled bigint NOT NULL,
    total_expired   bigint NOT NULL,
    PRIMARY KEY (action_id, minute)
) WITH (fillfactor = 70);
CREATE INDEX queue_stats_history_minute ON attune.queue_stats_history (minute);

-- Append-only for everybody but the upkeep, which removes what is older than its retention.
CREATE OR REPLACE FUNCTION attune.refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('attune.upkeep', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '%.% is append-only', TG_TABLE_SCHEMA, TG_TABLE_NAME;
END;
$$;

-- Removes up to `at_most` entries that are older than `cutoff`, the oldest first; gives how many.
-- A SET clause of the function would need a superuser, and this lasts to the end of the transaction.
CREATE FUNCTION attune.prune_audit(cutoff timestamptz, at_most bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    removed bigint;
BEGIN
    PERFORM set_config('attune.upkeep', 'on', true);
    WITH pruned AS (
        DELETE FROM attune.audit_log WHERE id = ANY(ARRAY(
            SELECT id FROM (SELECT id, at FROM attune.audit_log ORDER BY id LIMIT at_most) AS oldest
            WHERE at < cutoff))
        RETURNING id)
    SELECT count(*) INTO removed FROM pruned;
    PERFORM set_config('attune.upkeep', '', true);
    RETURN removed;
END;
$$;
