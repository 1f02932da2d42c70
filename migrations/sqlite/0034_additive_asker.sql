-- Who has asked for an execution, where it is counted how many of theirs wait: a number made from the name of
-- the key. Nothing for all others, and in no index then.
ALTER TABLE execution_active ADD COLUMN asker INTEGER;
CREATE INDEX execution_active_asker ON execution_active (asker) WHERE asker IS NOT NULL;
