DELETE FROM executor_lease WHERE executor = ?1
