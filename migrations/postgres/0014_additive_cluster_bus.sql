-- Through which virtual host and under which prefix the messages of the cluster go. Whoever starts first
-- notes it, and whoever would speak where nobody listens does not start.
ALTER TABLE attune.cluster ADD COLUMN bus text;
