-- Jobs enter and leave ``ready``, ``running``, ``paused`` and ``ended``.

-- name: to_ready
-- PRIMARY KEY of ready; ready_dying if the job can expire.
INSERT INTO ready (lane, priority, run_at, id, seq, epoch, attempt, lost, size, dies_at, gid)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: to_paused
-- INTEGER PRIMARY KEY.
INSERT INTO paused (seq, qid, epoch, attempt, lost, size) VALUES (?, ?, ?, ?, ?, ?)

-- name: to_ended
-- INTEGER PRIMARY KEY; ended_age; ended_held if there is a result.
INSERT INTO ended (seq, state, finished_at, held_until, epoch, attempt, lost, size, reason, result)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: from_ready
-- PRIMARY KEY of ready.
DELETE FROM ready WHERE lane = ?1 AND priority = ?2 AND run_at = ?3 AND id = ?4

-- name: shift
-- PRIMARY KEY of ready: to another lane and priority.
UPDATE ready SET lane = ?5, priority = ?6 WHERE lane = ?1 AND priority = ?2 AND run_at = ?3 AND id = ?4

-- name: postpone
-- PRIMARY KEY of ready: to another instant; ready_dying if the job can expire.
UPDATE ready SET lane = ?5, run_at = ?6, dies_at = ?7 WHERE lane = ?1 AND priority = ?2 AND run_at = ?3 AND id = ?4

-- name: set_lane
-- INTEGER PRIMARY KEY: the lane of the job in ready.
UPDATE jobs SET lane = ?2 WHERE seq = ?1

-- name: from_running
-- INTEGER PRIMARY KEY, one probe per seq.
DELETE FROM running WHERE seq IN carray(?1)

-- name: from_paused
-- INTEGER PRIMARY KEY.
DELETE FROM paused WHERE seq = ?1

-- name: from_ended
-- INTEGER PRIMARY KEY, one probe per seq.
DELETE FROM ended WHERE seq IN carray(?1)

-- name: waiters
-- PRIMARY KEY (seq, inbox), one probe per seq; INTEGER PRIMARY KEY of jobs.
SELECT CAST(w.inbox AS BLOB), j.id
FROM carray(?1) AS wanted CROSS JOIN waiters AS w ON w.seq = wanted.value CROSS JOIN jobs AS j ON j.seq = w.seq

-- name: drop_waiters
-- PRIMARY KEY (seq, inbox), one probe per seq.
DELETE FROM waiters WHERE seq IN carray(?1)

-- name: belongings
-- INTEGER PRIMARY KEY, one probe per seq: the jobs with a key or with big cells.
SELECT j.seq, j.key IS NOT NULL, j.far, j.headers, j.error, j.parameters, j.vm_state, j.metadata, j.blob
FROM carray(?1) AS wanted CROSS JOIN jobs AS j ON j.seq = wanted.value
WHERE j.key IS NOT NULL OR j.far

-- name: far_results
-- INTEGER PRIMARY KEY, one probe per seq.
SELECT e.result FROM carray(?1) AS wanted CROSS JOIN ended AS e ON e.seq = wanted.value
WHERE typeof(e.result) = 'integer'

-- name: forget
-- INTEGER PRIMARY KEY, one probe per seq.
DELETE FROM jobs WHERE seq IN carray(?1)
