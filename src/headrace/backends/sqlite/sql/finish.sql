-- The end of leases.

-- name: leases
-- UNIQUE jobs_id and INTEGER PRIMARY KEY of running, one probe per id.
SELECT j.id, j.seq, r.epoch, r.holder, r.qid, r.cancel, r.attempt, r.lost, r.size
FROM carray(?1) AS wanted CROSS JOIN jobs AS j ON j.id = wanted.value CROSS JOIN running AS r ON r.seq = j.seq

-- name: draft
-- INTEGER PRIMARY KEY.
SELECT id, qid, key, priority, run_at, expires_at, error, headers, parameters, vm_state, metadata, blob
FROM jobs WHERE seq = ?1

-- name: reschedule
-- INTEGER PRIMARY KEY.
UPDATE jobs SET run_at = ?2 WHERE seq = ?1

-- name: rewrite
-- INTEGER PRIMARY KEY.
UPDATE jobs SET
    qid = ?2, key = ?3, priority = ?4, run_at = ?5, far = ?6, error = ?7,
    parameters = ?8, vm_state = ?9, metadata = ?10, blob = ?11
WHERE seq = ?1
