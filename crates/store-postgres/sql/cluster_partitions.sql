SELECT partitions FROM attune.cluster
