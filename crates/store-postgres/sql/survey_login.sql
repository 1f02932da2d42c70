-- Who asks, and what that one may beyond what a part of the system needs. Reads catalogs that everybody may read.
SELECT current_user::text AS login, r.rolsuper AS is_superuser,
       EXISTS (
           SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
           WHERE n.nspname = 'attune' AND c.relkind IN ('r', 'p')
             AND pg_has_role(current_user, c.relowner, 'USAGE')) AS is_owner
FROM pg_roles r WHERE r.rolname = current_user
