-- Each entry of the audit log is a link of a chain: its hash is made from the entry and the hash of the one
-- before, so that an entry that was changed, removed or put in between later is seen by whoever has noted a
-- hash. Links have numbers of their own, in the order of the commits; ids of entries are given out earlier.

CREATE TABLE attune.audit_chain (
    no    bigint PRIMARY KEY,
    entry bigint NOT NULL UNIQUE,
    hash  bytea NOT NULL CHECK (length(hash) = 32)
);
-- The last link. Whoever writes an entry holds this row until the end of the transaction, so it is to be the
-- last thing that a transaction does.
CREATE TABLE attune.audit_head (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    no       bigint NOT NULL,
    hash     bytea NOT NULL
);
INSERT INTO attune.audit_head (no, hash) VALUES (0, decode(repeat('00', 32), 'hex'));

-- A value with its length in bytes before it, so that two entries never give one text.
CREATE FUNCTION attune.audit_field(value text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(octet_length(convert_to(value, 'UTF8'))::text || ':' || value, '-')
$$;

CREATE FUNCTION attune.add_audit_link(entry attune.audit_log) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    head attune.audit_head;
    link bytea;
BEGIN
    SELECT * INTO STRICT head FROM attune.audit_head FOR UPDATE;
    link := sha256(head.hash || convert_to(concat_ws(',',
        entry.id::text,
        (extract(epoch FROM entry.at) * 1000000)::bigint::text,
        attune.audit_field(entry.who), attune.audit_field(entry.what), attune.audit_field(entry.target),
        attune.audit_field(entry.reason), attune.audit_field(entry.before::text),
        attune.audit_field(entry.after::text), entry.request_id::text), 'UTF8'));
    INSERT INTO attune.audit_chain (no, entry, hash) VALUES (head.no + 1, entry.id, link);
    UPDATE attune.audit_head SET no = head.no + 1, hash = link;
END;
$$;

CREATE FUNCTION attune.chain_audit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM attune.add_audit_link(NEW);
    RETURN NULL;
END;
$$;
-- Only for what is stored: an entry that is there already adds no link.
CREATE TRIGGER audit_log_is_chained AFTER INSERT ON attune.audit_log
    FOR EACH ROW EXECUTE FUNCTION attune.chain_audit();

CREATE TRIGGER audit_chain_is_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON attune.audit_chain
    FOR EACH STATEMENT EXECUTE FUNCTION attune.refuse_change();

-- What was written before.
DO $$
DECLARE
    entry attune.audit_log;
BEGIN
    FOR entry IN SELECT * FROM attune.audit_log ORDER BY id LOOP
        PERFORM attune.add_audit_link(entry);
    END LOOP;
END;
$$;

-- As before, in the order of the chain, but nothing younger than a month, whoever asks. The last link that is
-- removed stays: the next is made from its hash.
CREATE OR REPLACE FUNCTION attune.prune_audit(cutoff timestamptz, at_most bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    upto    bigint;
    removed bigint;
BEGIN
    SELECT max(no) INTO upto FROM (
        SELECT no, bool_and(coalesce(at < least(cutoff, now() - interval '31 days'), true)) OVER (ORDER BY no) AS old FROM (
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
