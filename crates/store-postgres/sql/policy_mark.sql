-- The version of the policy set, and a number that rises with every change of an action and every new one.
SELECT (SELECT version FROM attune.policy_set),
       (SELECT coalesce(sum(version), 0)::bigint FROM attune.action)
