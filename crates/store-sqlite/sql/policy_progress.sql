SELECT partition, set_version FROM policy_progress ORDER BY partition
