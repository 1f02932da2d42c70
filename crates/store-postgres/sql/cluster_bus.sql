SELECT bus FROM attune.cluster
