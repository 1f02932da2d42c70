-- Roles of the database with what each part of the system needs and no more, from the statements that it makes.
-- `$` stands for the prefix of their names. They are groups: whoever logs in is made a member. Run again after each
-- migration: what a new table needs is not granted by itself.

DO $do$
DECLARE
    part text;
BEGIN
    FOREACH part IN ARRAY ARRAY['executor', 'listener', 'stats', 'api', 'worker', 'monitor'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', '$' || part);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END LOOP;
    EXECUTE format('REVOKE CONNECT, TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO "$executor", "$listener", "$stats", "$api", "$worker", "$monitor"',
                   current_database());
END;
$do$;

-- What a release before granted and this one does not need.
REVOKE ALL ON ALL TABLES IN SCHEMA attune FROM "$executor", "$listener", "$stats", "$api", "$worker", "$monitor";
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA attune FROM PUBLIC, "$executor", "$listener", "$stats", "$api", "$worker", "$monitor";

-- Everybody: whether the schema is the right one, and whose it is.
GRANT USAGE ON SCHEMA attune TO "$executor", "$listener", "$stats", "$api", "$worker", "$monitor";
GRANT SELECT ON attune.schema_migration, attune.cluster, attune.system
    TO "$executor", "$listener", "$stats", "$api", "$worker", "$monitor";

-- The executor decides, so it writes what executions are; it changes no action and no policy.
-- It makes sure at each start that there is a lease for each partition.
GRANT INSERT, UPDATE (bus) ON attune.cluster TO "$executor";
GRANT INSERT ON attune.partition_lease TO "$executor";
GRANT SELECT, UPDATE ON attune.partition_lease TO "$executor";
GRANT SELECT, INSERT, UPDATE, DELETE ON attune.executor_lease, attune.execution_active TO "$executor";
GRANT SELECT, INSERT ON attune.request, attune.execution_history TO "$executor";
GRANT SELECT, INSERT, UPDATE ON attune.meter, attune.queue_totals, attune.policy_progress, attune.dead_letter TO "$executor";
GRANT SELECT, UPDATE ON attune.operation_progress TO "$executor";
GRANT SELECT ON attune.worker_lease, attune.action, attune.pack, attune.policy, attune.policy_set, attune.pause,
    attune.pause_resumed, attune.pause_set, attune.operation TO "$executor";
GRANT UPDATE (ended, expires_at) ON attune.worker_lease TO "$executor";
-- Number and time of an entry are the database's own.
GRANT SELECT (request_id), INSERT (request_id, who, what, target, reason, before, after, actor_kind, key_id, source_ip, via) ON attune.audit_log TO "$executor";
GRANT EXECUTE ON FUNCTION attune.ended(bigint[], timestamptz, timestamptz) TO "$executor", "$api";

-- The API shows everything, and changes what operators and authors change. It ends no execution and grants none.
GRANT SELECT ON ALL TABLES IN SCHEMA attune TO "$api";
GRANT INSERT (request_id, who, what, target, reason, before, after, actor_kind, key_id, source_ip, via) ON attune.audit_log TO "$api";
GRANT INSERT ON attune.operation, attune.operation_progress, attune.pack, attune.action, attune.policy,
    attune.pause, attune.pause_resumed, attune.worker_lease, attune.api_key TO "$api";
GRANT UPDATE ON attune.action, attune.policy, attune.pause, attune.pause_resumed, attune.pause_set, attune.policy_set,
    attune.dead_letter, attune.worker_lease, attune.api_key TO "$api";
GRANT DELETE ON attune.pause, attune.pause_resumed, attune.policy TO "$api";

-- The keeper of statistics and dead letters, and of what is old.
GRANT SELECT, INSERT, UPDATE, DELETE ON attune.queue_stats, attune.queue_stats_history, attune.dead_letter TO "$stats";
GRANT SELECT ON attune.action, attune.policy_set TO "$stats";
GRANT SELECT, UPDATE, DELETE ON attune.meter TO "$stats";
GRANT SELECT, DELETE ON attune.policy, attune.operation, attune.operation_progress, attune.worker_lease, attune.executor_lease,
    attune.request_default, attune.execution_history_default TO "$stats";
ALTER FUNCTION attune.make_days(text, integer) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION attune.drop_day(text, timestamptz) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
GRANT EXECUTE ON FUNCTION attune.make_days(text, integer), attune.drop_day(text, timestamptz),
    attune.prune_audit(timestamptz, bigint) TO "$stats";

-- Each of these says in the audit log that it has begun. A worker does not: whoever has its login could fill the log.
GRANT EXECUTE ON FUNCTION attune.note_start(uuid, text, text, text, text) TO "$executor", "$listener", "$stats", "$api";

-- A worker has a lease, and says which of its grants had begun. It sees the leases of its own login alone, and of an
-- execution only to whom it is granted.
GRANT SELECT ON attune.worker_lease TO "$worker", "$monitor";
GRANT INSERT (worker, name, pool, slots, expires_at, renewed_at, draining, broker_user, principal),
    UPDATE (name, pool, slots, expires_at, renewed_at, renewals, draining, broker_user, ended, over_at, begun)
    ON attune.worker_lease TO "$worker";
GRANT SELECT (id, attempt, worker) ON attune.execution_active TO "$worker";
ALTER TABLE attune.worker_lease ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS all_lives ON attune.worker_lease;
CREATE POLICY all_lives ON attune.worker_lease TO "$executor", "$api", "$stats", "$monitor"
    USING (true) WITH CHECK (true);
DROP POLICY IF EXISTS own_lives ON attune.worker_lease;
-- Its pool is one of those whose role its login has.
CREATE POLICY own_lives ON attune.worker_lease TO "$worker"
    USING (account = session_user)
    WITH CHECK (account = session_user AND EXISTS (
        SELECT FROM pg_catalog.pg_roles r
        WHERE r.rolname = '$pool_' || pool AND pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')));

-- Who watches sees figures, and nothing of what executions are given or say.
GRANT SELECT ON attune.queue_stats, attune.queue_stats_history, attune.queue_totals, attune.partition_lease,
    attune.executor_lease, attune.pause, attune.pause_set TO "$monitor";
GRANT SELECT (id, ref, partition) ON attune.action TO "$monitor";
GRANT SELECT (id, action, status, priority, attempt, worker, created, requested_by) ON attune.execution_active TO "$monitor";

-- Nobody changes what the audit log says; its links are made by a trigger, with the rights of the owner.
REVOKE UPDATE, DELETE, TRUNCATE ON attune.audit_log, attune.audit_chain, attune.audit_head, attune.audit_retention FROM PUBLIC, "$executor", "$listener", "$stats", "$api", "$worker", "$monitor";
