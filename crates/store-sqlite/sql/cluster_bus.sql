SELECT bus FROM cluster
