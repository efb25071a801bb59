-- Changes from outside.

-- name: request_cancel
-- INTEGER PRIMARY KEY; running_cancel.
UPDATE running SET cancel = ?2 WHERE seq = ?1 AND NOT cancel

-- name: relocate
-- INTEGER PRIMARY KEY.
UPDATE jobs SET qid = ?2, priority = ?3 WHERE seq = ?1

-- name: renewed
-- INTEGER PRIMARY KEY: as if the job were new.
UPDATE jobs SET run_at = ?2, expires_at = NULL, error = NULL WHERE seq = ?1

-- name: hold
-- INTEGER PRIMARY KEY; ended_age and ended_held.
UPDATE ended SET held_until = ?2 WHERE seq = ?1
