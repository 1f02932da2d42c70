-- Whoever applies an action holds this row, so that nobody changes what it inherits in between.
SELECT version FROM attune.policy_set FOR SHARE
