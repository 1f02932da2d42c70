SELECT id FROM attune.system
