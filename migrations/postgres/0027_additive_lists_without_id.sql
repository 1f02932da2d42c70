-- The owners' statements find executions by their ids alone. The indexes of the lists ended with the id, and on
-- a table that had been emptied and vacuumed the planner took one of them for it: the server then read all of
-- the index for each id, until the table was analysed again. Without the id there is no index but the one, and
-- executions of one moment, which a list sorts by their ids, are few.
--
-- As in 0025: everything can be read while the indexes are built, and the old ones are dropped in a moment or
-- not at all.
CREATE INDEX execution_active_list_new ON attune.execution_active (created);
CREATE INDEX execution_active_action_new ON attune.execution_active (action DESC, created);
CREATE INDEX execution_active_user_new ON attune.execution_active (requested_by, created)
    WHERE requested_by IS NOT NULL;
CREATE INDEX execution_active_group_new ON attune.execution_active (group_key, created)
    WHERE group_key IS NOT NULL;

SET LOCAL lock_timeout = '10s';
DROP INDEX attune.execution_active_list, attune.execution_active_action, attune.execution_active_user,
    attune.execution_active_group;
ALTER INDEX attune.execution_active_list_new RENAME TO execution_active_list;
ALTER INDEX attune.execution_active_action_new RENAME TO execution_active_action;
ALTER INDEX attune.execution_active_user_new RENAME TO execution_active_user;
ALTER INDEX attune.execution_active_group_new RENAME TO execution_active_group;
