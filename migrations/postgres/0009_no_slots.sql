-- An owner knows who holds its slots and looks for those by their ids; who holds one that it does
-- not know of is found with all that waits. So no execution pays for a list of holders or for an
-- index of its partition any more: loading a partition goes along the index on its actions.
--
-- Executors of earlier releases write the list with every commit and are refused from now on;
-- what they own waits until executors of this release take it over.
DROP TABLE attune.slot;
DROP INDEX attune.execution_active_partition;
