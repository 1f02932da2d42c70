DELETE FROM attune.executor_lease WHERE executor = $1::uuid
