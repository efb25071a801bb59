-- The end of leases.

-- name: leases
-- UNIQUE jobs_id and INTEGER PRIMARY KEY of running, one probe per id.
SELECT j.id, j.seq, r.epoch, r.holder, r.qid, r.cancel, r.attempt, r.lost, r.size, r.gid, r.tid
FROM carray(?1) AS wanted CROSS JOIN jobs AS j ON j.id = wanted.value CROSS JOIN running AS r ON r.seq = j.seq

-- name: end_alike
-- INTEGER PRIMARY KEY of running and of ended, one probe per seq; ended_age; ended_held if there is a result.
INSERT INTO ended (seq, state, finished_at, held_until, epoch, attempt, lost, size, reason, result)
SELECT r.seq, ?2, ?3, ?4, r.epoch, r.attempt, 0, r.size + ?7, ?5, ?6
FROM carray(?1) AS wanted CROSS JOIN running AS r ON r.seq = wanted.value

-- name: draft
-- INTEGER PRIMARY KEY.
SELECT
    id, qid, lane, key, priority, run_at, expires_at, task, tenant, grp, error, headers, parameters, vm_state, metadata,
    blob
FROM jobs WHERE seq = ?1

-- name: reschedule
-- INTEGER PRIMARY KEY.
UPDATE jobs SET run_at = ?2 WHERE seq = ?1

-- name: rewrite
-- INTEGER PRIMARY KEY; jobs_objects if its references change.
UPDATE jobs SET
    qid = ?2, key = ?3, priority = ?4, run_at = ?5, far = ?6, error = ?7,
    parameters = ?8, vm_state = ?9, metadata = ?10, blob = ?11, object_hour = ?12
WHERE seq = ?1
