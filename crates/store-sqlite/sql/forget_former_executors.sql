DELETE FROM executor_lease
