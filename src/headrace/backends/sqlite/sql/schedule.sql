-- Schedules: by name, by tenant, by queue, and by when a planner must look at them.

-- name: rows
-- INTEGER PRIMARY KEY, one probe per sid. The columns are the fields of ``Schedule``.
SELECT
    s.name, s.uid, s.queue, s.definition, s.tenant, s.rank, s.bucket, s.enabled, s.slot, s.look_at, s.runs,
    s.last_slot, s.last_job, s.version, s.created_at, s.updated_at
FROM carray(?1) AS wanted CROSS JOIN schedules AS s ON s.sid = wanted.value

-- name: named
-- UNIQUE (name), one probe per name.
SELECT s.sid FROM carray(?5) AS wanted CROSS JOIN schedules AS s ON s.name = wanted.value
WHERE s.name >= ?1 AND (?3 IS NULL OR s.tenant = ?3) AND (?4 IS NULL OR s.queue = ?4)
LIMIT ?2

-- name: all
-- UNIQUE (name), in its order.
SELECT sid FROM schedules WHERE name >= ?1 ORDER BY name LIMIT ?2

-- name: of_tenant
-- Index schedules_tenant, in its order: the range of one tenant.
SELECT sid FROM schedules INDEXED BY schedules_tenant
WHERE tenant = ?3 AND name >= ?1 AND (?4 IS NULL OR queue = ?4)
ORDER BY name
LIMIT ?2

-- name: of_queue
-- Index schedules_queue, in its order: the range of one queue.
SELECT sid FROM schedules INDEXED BY schedules_queue
WHERE queue = ?4 AND name >= ?1 AND (?3 IS NULL OR tenant = ?3)
ORDER BY name
LIMIT ?2

-- name: heads
-- Partial index schedules_due, skipping from rank to rank: the head of each.
WITH RECURSIVE level (rank) AS (
    SELECT min(s.rank) FROM schedules AS s INDEXED BY schedules_due WHERE s.enabled AND s.look_at IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(s.rank) FROM schedules AS s INDEXED BY schedules_due
        WHERE s.enabled AND s.look_at IS NOT NULL AND s.rank > l.rank
    )
    FROM level AS l
    WHERE l.rank IS NOT NULL
)
SELECT
    l.rank,
    (
        SELECT s.look_at FROM schedules AS s INDEXED BY schedules_due
        WHERE s.enabled AND s.look_at IS NOT NULL AND s.rank = l.rank AND s.bucket % ?2 = ?1
        ORDER BY s.look_at, s.name
        LIMIT 1
    )
FROM level AS l
WHERE l.rank IS NOT NULL

-- name: due
-- Partial index schedules_due, in its order: (rank, look_at <= now).
SELECT sid FROM schedules INDEXED BY schedules_due
WHERE enabled AND look_at IS NOT NULL AND rank = ?3 AND look_at <= ?4 AND bucket % ?2 = ?1
ORDER BY look_at, name
LIMIT ?5

-- name: coming
-- Partial index schedules_due, in its order: (rank, look_at > now) at its head.
SELECT look_at FROM schedules INDEXED BY schedules_due
WHERE enabled AND look_at IS NOT NULL AND rank = ?3 AND look_at > ?4 AND bucket % ?2 = ?1
ORDER BY look_at, name
LIMIT 1

-- name: known
-- UNIQUE (name).
SELECT sid, version, definition FROM schedules WHERE name = ?1

-- name: add
-- INTEGER PRIMARY KEY; UNIQUE (name); schedules_tenant and schedules_queue; schedules_due if it is enabled.
INSERT INTO schedules (
    uid, queue, tenant, rank, bucket, enabled, slot, look_at, runs, last_slot, last_job, version, updated_at,
    definition, created_at, name
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: change
-- INTEGER PRIMARY KEY; schedules_tenant, schedules_queue and schedules_due.
UPDATE schedules SET
    uid = ?, queue = ?, tenant = ?, rank = ?, bucket = ?, enabled = ?, slot = ?, look_at = ?, runs = ?, last_slot = ?,
    last_job = ?, version = ?, updated_at = ?, definition = ?
WHERE sid = ?

-- name: drop
-- INTEGER PRIMARY KEY.
DELETE FROM schedules WHERE sid = ?1

-- name: progress
-- UNIQUE (name), one probe per name.
SELECT s.name, s.sid, s.uid, s.version, s.slot, s.look_at, s.runs, s.last_slot, s.last_job
FROM carray(?1) AS wanted CROSS JOIN schedules AS s ON s.name = wanted.value

-- name: move
-- INTEGER PRIMARY KEY; schedules_due.
UPDATE schedules SET version = ?2, slot = ?3, look_at = ?4, runs = ?5, last_slot = ?6, last_job = ?7 WHERE sid = ?1
