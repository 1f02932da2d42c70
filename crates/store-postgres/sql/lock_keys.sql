-- So that nobody makes a key of the same name meanwhile; keys are read as before.
LOCK TABLE attune.api_key IN SHARE ROW EXCLUSIVE MODE
