-- Leases between claim and finish: beats and reaping.

-- name: beat
-- PRIMARY KEY (holder); the first beat's started_at stays.
INSERT INTO workers (holder, worker, queues, slots, busy, started_at, seen_at, listed_until, steady_since)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?6)
ON CONFLICT (holder) DO UPDATE SET
    worker = excluded.worker, queues = excluded.queues, slots = excluded.slots, busy = excluded.busy,
    steady_since = iif(excluded.seen_at - seen_at <= ?8, steady_since, excluded.seen_at),
    seen_at = excluded.seen_at, listed_until = excluded.listed_until

-- name: listed
-- PRIMARY KEY (holder).
SELECT 1 FROM workers WHERE holder = ?1 AND listed_until > ?2

-- name: last_listed
-- A scan: workers are few. Only when a worker starts or comes back.
SELECT listed_until, seen_at FROM workers ORDER BY listed_until DESC, holder DESC LIMIT 2

-- name: away
-- The only row.
UPDATE absence SET begins = ?1, ends = ?2 WHERE ?1 - at_work_since >= ?3

-- name: at_work
-- The only row.
UPDATE absence SET at_work_since = ?1

-- name: absence
-- The only row.
SELECT begins, ends FROM absence

-- name: leave
-- PRIMARY KEY (holder).
DELETE FROM workers WHERE holder = ?1

-- name: extend
-- INTEGER PRIMARY KEY, one probe per seq.
UPDATE running SET lease_until = ?2 WHERE seq IN carray(?1)

-- name: progress
-- INTEGER PRIMARY KEY.
UPDATE running SET progress = ?2 WHERE seq = ?1

-- name: cancels
-- Partial index running_cancel; INTEGER PRIMARY KEY of jobs.
SELECT j.id FROM running AS r INDEXED BY running_cancel CROSS JOIN jobs AS j ON j.seq = r.seq
WHERE r.cancel AND r.holder = ?1

-- name: census
-- Index running_lease, from its head; INTEGER PRIMARY KEY of jobs.
SELECT j.id, some.epoch, some.begun
FROM (SELECT seq, epoch, begun, holder FROM running INDEXED BY running_lease ORDER BY lease_until LIMIT ?2) AS some
CROSS JOIN jobs AS j ON j.seq = some.seq
WHERE some.holder = ?1

-- name: steady
-- PRIMARY KEY (holder).
SELECT 1 FROM workers WHERE holder = ?1 AND seen_at >= ?2 - ?3 AND steady_since <= ?2 - ?4

-- name: unlisted
-- A scan: workers are few.
SELECT 1 FROM workers WHERE listed_until <= ?1 LIMIT 1

-- name: unlist
-- A scan: workers are few.
DELETE FROM workers WHERE listed_until <= ?1

-- name: any_over
-- Index running_lease.
SELECT 1 FROM running INDEXED BY running_lease WHERE lease_until <= ?1 LIMIT 1

-- name: over
-- Index running_lease: the expired leases only.
SELECT count(*) FROM running INDEXED BY running_lease WHERE lease_until <= ?1

-- name: oldest_over
-- Index running_lease, in its order; INTEGER PRIMARY KEY of jobs and of queues.
SELECT
    r.seq, j.id, r.qid, q.name, j.task, j.key, r.epoch, r.attempt, r.lost, r.size, r.cancel, j.priority, j.expires_at,
    j.tenant, j.grp, j.lane, r.gid, r.tid, r.holder, r.lease_until
FROM running AS r INDEXED BY running_lease CROSS JOIN jobs AS j ON j.seq = r.seq CROSS JOIN queues AS q ON q.qid = r.qid
WHERE r.lease_until <= ?1
ORDER BY r.lease_until, r.seq
LIMIT ?2

-- name: expired
-- Partial index ready_dying, in its order; INTEGER PRIMARY KEY of jobs and of queues.
SELECT
    r.lane, r.priority, r.run_at, r.id, r.seq, r.epoch, r.attempt, r.lost, r.size, r.gid, q.qid, q.name, j.task,
    j.tenant, j.key
FROM ready AS r INDEXED BY ready_dying CROSS JOIN jobs AS j ON j.seq = r.seq CROSS JOIN queues AS q ON q.qid = j.qid
WHERE r.dies_at IS NOT NULL AND r.dies_at <= ?1
ORDER BY r.dies_at
LIMIT ?2
