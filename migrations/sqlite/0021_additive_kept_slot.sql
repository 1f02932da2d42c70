-- Until when an execution keeps its slot whose try has ended (`policy.retry.hold_slot`). Its attempt is over and
-- nobody may claim it; the next one is written when its time has come.
ALTER TABLE execution_active ADD COLUMN kept_until TEXT;
