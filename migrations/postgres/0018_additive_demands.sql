-- What an execution demands of the limits of its action, where not all demand the same: the rule by which
-- that follows from what was submitted (8 bytes), the group (16) and the cost (2). Nothing, or what
-- another rule has said, is made anew from the submission by whoever owns the execution.
ALTER TABLE attune.execution_active ADD COLUMN demand bytea;
