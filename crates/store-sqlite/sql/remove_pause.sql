DELETE FROM pause WHERE scope = ?1 AND target = ?2
