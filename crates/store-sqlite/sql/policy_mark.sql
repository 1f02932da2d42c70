-- The version of the policy set, and a number that rises with every change of an action and every new one.
SELECT (SELECT version FROM policy_set) AS set_version,
       (SELECT coalesce(sum(version), 0) FROM action) AS actions
