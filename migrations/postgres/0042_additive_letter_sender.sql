-- Who had sent a message that nobody could use: the user of the broker, as far as it vouches for one.
ALTER TABLE attune.dead_letter ADD COLUMN sender text;
