SELECT partitions FROM cluster
