-- Ticks: what became of the slots of schedules.

-- name: known
-- PRIMARY KEY (uid, slot), one probe per slot.
SELECT slot, outcome FROM ticks WHERE uid = ?1 AND slot IN carray(?2)

-- name: live
-- UNIQUE jobs_id, INTEGER PRIMARY KEY of ended: a job that has not ended is live.
SELECT 1 FROM jobs AS j WHERE j.id = ?1 AND NOT EXISTS (SELECT 1 FROM ended AS e WHERE e.seq = j.seq)

-- name: add
-- PRIMARY KEY (uid, slot); ticks_age.
INSERT INTO ticks (uid, slot, run_at, outcome, planned_at, count, job, state) VALUES (?, ?, ?, ?, ?, ?, ?, '')

-- name: take_off
-- PRIMARY KEY (uid, slot).
DELETE FROM ticks WHERE uid = ?1 AND slot = ?2

-- name: note
-- PRIMARY KEY (uid, slot).
UPDATE ticks SET state = ?3, waited = ?4, ran = ?5 WHERE uid = ?1 AND slot = ?2

-- name: history
-- PRIMARY KEY (uid, slot), backwards.
SELECT slot, run_at, outcome, planned_at, count, job, state, waited, ran FROM ticks
WHERE uid = ?1 AND slot < ?2
ORDER BY slot DESC
LIMIT ?3

-- name: oldest
-- Index ticks_age, in its order, at its head.
SELECT planned_at, uid, slot FROM ticks INDEXED BY ticks_age ORDER BY planned_at, uid, slot LIMIT ?1

-- name: aged
-- Index ticks_age, in its order: (planned_at <= then).
SELECT planned_at, uid, slot FROM ticks INDEXED BY ticks_age
WHERE planned_at <= ?1
ORDER BY planned_at, uid, slot
LIMIT ?2

-- name: forget
-- Index ticks_age: ((planned_at, uid, slot) <= the last one to go).
DELETE FROM ticks INDEXED BY ticks_age WHERE (planned_at, uid, slot) <= (?1, ?2, ?3)
