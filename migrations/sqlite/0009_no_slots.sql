-- A partition is loaded along the index on its actions, so that no execution pays for an index of
-- its partition.
DROP INDEX execution_active_partition;
