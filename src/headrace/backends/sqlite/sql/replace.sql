-- A waiting job takes on what a row with its key replaces.

-- name: cells
-- INTEGER PRIMARY KEY; jobs_objects if its references change.
UPDATE jobs SET far = ?2, parameters = ?3, vm_state = ?4, metadata = ?5, blob = ?6, object_hour = ?7 WHERE seq = ?1

-- name: time
-- INTEGER PRIMARY KEY.
UPDATE jobs SET run_at = ?2, expires_at = ?3 WHERE seq = ?1

-- name: grow_ready
-- PRIMARY KEY of ready.
UPDATE ready SET size = size + ?5 WHERE lane = ?1 AND priority = ?2 AND run_at = ?3 AND id = ?4

-- name: grow_paused
-- INTEGER PRIMARY KEY.
UPDATE paused SET size = size + ?2 WHERE seq = ?1
