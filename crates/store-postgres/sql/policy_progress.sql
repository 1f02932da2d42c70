SELECT partition, set_version FROM attune.policy_progress ORDER BY partition
