-- Removes up to ?2 links whose entries are gone, but not the last of them: the next is made from its hash. ?1
-- is not looked at.
DELETE FROM audit_chain
 WHERE no IN (
    SELECT c.no FROM audit_chain AS c
     WHERE ?1 >= 0
       AND c.no < (SELECT coalesce(min(k.no), 0) - 1 FROM audit_chain AS k JOIN audit_log AS l ON l.id = k.entry)
     ORDER BY c.no
     LIMIT ?2)
