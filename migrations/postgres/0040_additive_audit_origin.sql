-- How it is known who did something: what kind of somebody, the public part of their key, the address and the way
-- that it came. Absent where it is not known, and in entries of before this.
ALTER TABLE attune.audit_log
    ADD COLUMN actor_kind text,
    ADD COLUMN key_id     text,
    ADD COLUMN source_ip  text,
    ADD COLUMN via        text;

-- An entry that has any of it is hashed in a second form, which begins with `v2` and has all of it; the first one
-- begins with a digit. So nothing can be put into the new columns of an old entry without being seen.
CREATE OR REPLACE FUNCTION attune.add_audit_link(entry attune.audit_log) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    head   attune.audit_head;
    link   bytea;
    origin text := CASE WHEN coalesce(entry.actor_kind, entry.key_id, entry.source_ip, entry.via) IS NOT NULL
                   THEN concat_ws(',', attune.audit_field(entry.actor_kind), attune.audit_field(entry.key_id),
                                  attune.audit_field(entry.source_ip), attune.audit_field(entry.via)) END;
BEGIN
    SELECT * INTO STRICT head FROM attune.audit_head FOR UPDATE;
    link := sha256(head.hash || convert_to(concat_ws(',',
        CASE WHEN origin IS NOT NULL THEN 'v2' END,
        entry.id::text,
        (extract(epoch FROM entry.at) * 1000000)::bigint::text,
        attune.audit_field(entry.who), attune.audit_field(entry.what), attune.audit_field(entry.target),
        attune.audit_field(entry.reason), attune.audit_field(entry.before::text),
        attune.audit_field(entry.after::text), entry.request_id::text, origin), 'UTF8'));
    INSERT INTO attune.audit_chain (no, entry, hash) VALUES (head.no + 1, entry.id, link);
    UPDATE attune.audit_head SET no = head.no + 1, hash = link;
END;
$$;

-- How long entries stay at the least. `attune migrate` writes it, as the owner of the tables; nobody else may.
CREATE TABLE attune.audit_retention (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    days     integer NOT NULL CHECK (days BETWEEN 31 AND 3650)
);
INSERT INTO attune.audit_retention (days) VALUES (400);

-- As before, in the order of the chain, a whole month at a time, and nothing that is younger than the owner of the
-- tables lets go, whoever asks. The last link that is removed stays: the next is made from its hash.
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
        SELECT no, bool_and(coalesce(at < month, true)) OVER (ORDER BY no) AS old FROM (
            SELECT c.no, l.at FROM attune.audit_chain AS c LEFT JOIN attune.audit_log AS l ON l.id = c.entry
            ORDER BY c.no LIMIT at_most) AS oldest) AS judged
    WHERE old;
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

-- That a process has begun, for parts that may write nothing else into the audit log. As whom it has logged in is
-- what the database says, not what it says itself.
CREATE FUNCTION attune.note_start(request uuid, who text, target text, version text, settings text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO attune.audit_log (request_id, who, what, target, after, actor_kind, via)
    VALUES (request, who, 'config.start', target,
            json_build_object('version', version, 'settings_sha256', settings, 'login', session_user),
            'system', 'process')
$$;
