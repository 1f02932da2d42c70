-- Through which bus the messages of the cluster go; noted by whoever starts first.
ALTER TABLE cluster ADD COLUMN bus TEXT;
