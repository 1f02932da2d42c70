-- An entry from a moment when the clock was ahead has a time that is still to come. It does not hold back those behind
-- it for as long: it goes with the first behind it that is old enough, since it was written before that one.
CREATE OR REPLACE FUNCTION attune.prune_audit(cutoff timestamptz, at_most bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    month   timestamptz;
    upto    bigint;
    removed bigint;
BEGIN
    SELECT date_trunc('month', least(cutoff, now() - make_interval(days => days)), 'UTC')
    INTO STRICT month FROM attune.audit_retention;
    SELECT max(no) INTO upto FROM (
        SELECT no, at, bool_and(coalesce(at < month OR at > now(), true)) OVER (ORDER BY no) AS may_go FROM (
            SELECT c.no, l.at FROM attune.audit_chain AS c LEFT JOIN attune.audit_log AS l ON l.id = c.entry
            ORDER BY c.no LIMIT at_most) AS oldest) AS judged
    WHERE may_go AND coalesce(at < month, true);
    IF upto IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM set_config('attune.upkeep', 'on', true);
    WITH pruned AS (
        DELETE FROM attune.audit_log WHERE id IN (SELECT entry FROM attune.audit_chain WHERE no <= upto)
        RETURNING id)
    SELECT count(*) INTO removed FROM pruned;
    DELETE FROM attune.audit_chain WHERE no < upto;
    PERFORM set_config('attune.upkeep', '', true);
    RETURN removed;
END;
$$;

-- What makes and drops days runs with the rights of the owner of the tables, for a login that has none: it makes no
-- more than a month of them, and drops none that is not over, nor requests of the last 24 hours.
CREATE OR REPLACE FUNCTION attune.make_days(whole text, ahead integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
    FOR day IN SELECT today + n FROM generate_series(0, least(ahead, 31)) AS n LOOP
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

CREATE OR REPLACE FUNCTION attune.drop_day(whole text, cutoff timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    child  text;
    -- A request that is repeated within a day is the same one, whoever does the upkeep.
    spared interval := CASE whole WHEN 'request' THEN interval '24 hours' ELSE interval '0' END;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('attune.' || whole, 0));
    SELECT c.relname INTO child
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = ('attune.' || quote_ident(whole))::regclass
      AND c.relname ~ ('^' || whole || '_\d{8}$')
      AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' <= least(cutoff, now() - spared)
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
