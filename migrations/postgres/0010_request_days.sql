-- Requests are kept by the day, like the history: a day that is over is dropped whole, where the
-- deletes of a day's requests one by one cost as much as to write them.
--
-- No index spans the days, since it would have to contain the day, so a request id is unique within
-- its day only. Whoever looks takes the oldest (docs/adr/0011-requests-by-day.md).
--
-- Executors of earlier releases name the index that spanned the table, and are refused from now on.
DO $$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    child text := 'request_' || to_char(today, 'YYYYMMDD');
    upper timestamptz := (today + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
    -- What there is becomes the part of all days up to today: it is read once, nothing is copied.
    EXECUTE format('ALTER TABLE attune.request RENAME TO %I', child);
    CREATE TABLE attune.request (
        request_id   uuid NOT NULL,
        execution_id bigint NOT NULL,
        digest       bigint NOT NULL,
        created      timestamptz NOT NULL
    ) PARTITION BY RANGE (created);
    -- Catches what no day takes, so that a commit can always be written.
    CREATE TABLE attune.request_default
        PARTITION OF attune.request (PRIMARY KEY (request_id)) DEFAULT;
    -- Written under a clock that was set back since.
    EXECUTE format(
        'WITH moved AS (DELETE FROM attune.%I WHERE created >= $1 RETURNING *)
         INSERT INTO attune.request_default SELECT * FROM moved', child) USING upper;
    EXECUTE format(
        'ALTER TABLE attune.request ATTACH PARTITION attune.%I FOR VALUES FROM (MINVALUE) TO (%L)',
        child, upper);
END;
$$;
DROP INDEX attune.request_created;

-- Makes the days of a table for today and the `ahead` days after it (UTC days), each with what the
-- default partition has: its indexes and its checks.
--
-- A day is made on its own and then attached: attaching blocks neither writes nor reads of the
-- other days, where CREATE TABLE … PARTITION OF would hold all of them up. Only the default
-- partition is locked, for a moment. The advisory lock lets one caller work at a time.
CREATE FUNCTION attune.make_days(whole text, ahead integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    today    date := (now() AT TIME ZONE 'UTC')::date;
    fallback text := whole || '_default';
    stamp    name;
    day      date;
    child    text;
    lower    timestamptz;
    upper    timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('attune.' || whole, 0));
    -- While this waits for the users of the default partition, later ones wait for it.
    PERFORM set_config('lock_timeout', '1s', true);
    SELECT a.attname INTO STRICT stamp
    FROM pg_partitioned_table p
    JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
    WHERE p.partrelid = ('attune.' || quote_ident(whole))::regclass;
    FOR day IN SELECT today + n FROM generate_series(0, ahead) AS n LOOP
        child := whole || '_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('attune.' || child) IS NOT NULL;
        lower := day::timestamp AT TIME ZONE 'UTC';
        upper := (day + 1)::timestamp AT TIME ZONE 'UTC';
        EXECUTE format('CREATE TABLE attune.%I (LIKE attune.%I INCLUDING ALL)', child, fallback);
        -- Rows that came before their day did lie in the default partition. While they move,
        -- nobody may add another.
        EXECUTE format('LOCK TABLE attune.%I IN ACCESS EXCLUSIVE MODE', fallback);
        EXECUTE format(
            'WITH moved AS (
                 DELETE FROM attune.%I WHERE %I >= $1 AND %2$I < $2 RETURNING *)
             INSERT INTO attune.%I SELECT * FROM moved', fallback, stamp, child)
            USING lower, upper;
        EXECUTE format(
            'ALTER TABLE attune.%I ATTACH PARTITION attune.%I FOR VALUES FROM (%L) TO (%L)',
            whole, child, lower, upper);
    END LOOP;
END;
$$;

-- Drops the oldest day of a table that ended before `cutoff`; false when there is none, or when it
-- is in use: dropping must wait for everybody who uses the table, and meanwhile every other one
-- would wait for it, so it gives up after a moment and is tried again later.
CREATE FUNCTION attune.drop_day(whole text, cutoff timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    child text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('attune.' || whole, 0));
    SELECT c.relname INTO child
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = ('attune.' || quote_ident(whole))::regclass
      AND c.relname ~ ('^' || whole || '_\d{8}$')
      AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' <= cutoff
    ORDER BY c.relname LIMIT 1;
    IF child IS NULL THEN
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', '250ms', true);
    EXECUTE format('DROP TABLE attune.%I', child);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END;
$$;

DROP FUNCTION attune.make_history_days(integer);
DROP FUNCTION attune.drop_history_day(timestamptz);

-- Where executions ended that ended within these bounds. Planned with the values at each call: a plan
-- that is kept locks every day of the history, and its indexes.
CREATE FUNCTION attune.ended(ids bigint[], since timestamptz, until timestamptz)
RETURNS TABLE (id bigint, status text)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY EXECUTE
        'SELECT h.id, h.status FROM attune.execution_history h
         WHERE h.id = ANY($1) AND h.finished_at >= $2 AND h.finished_at < $3'
        USING ids, since, until;
END;
$$;
