-- The tenants of governed queues and their lanes, as jobs come and go.

-- name: known
-- UNIQUE (qid, name), one probe per name; UNIQUE (tid, task) of lanes, one probe per tenant.
SELECT t.name, t.tid, t.since IS NULL AND NOT t.full, t.wake_at, l.task, l.lane
FROM carray(?2) AS wanted
CROSS JOIN tenants AS t ON t.qid = ?1 AND t.name = wanted.value
LEFT JOIN lanes AS l ON l.tid = t.tid AND l.task = ?3

-- name: known_with_tasks
-- UNIQUE (qid, name), one probe per name; UNIQUE (tid, task) of lanes, one probe per tenant and task.
SELECT t.name, t.tid, t.since IS NULL AND NOT t.full, t.wake_at, l.task, l.lane
FROM carray(?2) AS wanted
CROSS JOIN tenants AS t ON t.qid = ?1 AND t.name = wanted.value
LEFT JOIN lanes AS l ON l.tid = t.tid AND l.task IN carray(?3)

-- name: numbers
-- UNIQUE (qid, name), one probe per name.
SELECT t.name, t.tid FROM carray(?2) AS wanted CROSS JOIN tenants AS t ON t.qid = ?1 AND t.name = wanted.value

-- name: add
-- UNIQUE (qid, name).
INSERT INTO tenants (qid, name) VALUES (?1, ?2) RETURNING tid

-- name: expect
-- INTEGER PRIMARY KEY: a sleeping tenant wakes then, if not before.
UPDATE tenants SET wake_at = min(coalesce(wake_at, ?2), ?2) WHERE tid = ?1 AND since IS NULL AND NOT full

-- name: last_lane
-- The last entry of the INTEGER PRIMARY KEY.
SELECT coalesce(max(lane), ?1) FROM lanes

-- name: add_lane
-- INTEGER PRIMARY KEY, appended; UNIQUE (tid, task).
INSERT INTO lanes (lane, tid, task) VALUES (?1, ?2, ?3)

-- name: more_lanes
-- INTEGER PRIMARY KEY; tenants_idle.
UPDATE tenants SET lanes = lanes + ?2 WHERE tid = ?1

-- name: forget_lane
-- INTEGER PRIMARY KEY; PRIMARY KEY of ready: the heads of the lane and of its lane of delayed jobs.
DELETE FROM lanes
WHERE lane = ?1 AND NOT EXISTS (SELECT 1 FROM ready AS r WHERE r.lane = ?1)
    AND NOT EXISTS (SELECT 1 FROM ready AS r WHERE r.lane = {delayed} - ?1)
RETURNING tid

-- name: start
-- INTEGER PRIMARY KEY; tenants_idle.
UPDATE tenants SET running = running + ?2 WHERE tid = ?1

-- name: stopping
-- INTEGER PRIMARY KEY of tenants and of queues, one probe per tenant: whether it may be forgotten once none of its jobs
-- runs, whether it is full, and which rules of its queue others may wait for.
SELECT t.tid, t.running, t.lanes = 0 AND t.since IS NULL, t.full, q.qid, q.bounded, q.holders
FROM carray(?1) AS wanted CROSS JOIN tenants AS t ON t.tid = wanted.value CROSS JOIN queues AS q ON q.qid = t.qid

-- name: open
-- INTEGER PRIMARY KEY; tenants_asleep: a full tenant wakes.
UPDATE tenants SET full = 0, wake_at = ?2 WHERE tid = ?1

-- name: make_room
-- UNIQUE (qid, name): as if a job of the tenant had stopped running.
UPDATE tenants SET full = 0, wake_at = ?3 WHERE qid = ?1 AND name = ?2 AND full

-- name: idle
-- UNIQUE (qid, name).
SELECT tid FROM tenants WHERE qid = ?1 AND name = ?2 AND running = 0 AND lanes = 0 AND since IS NULL

-- name: forget
-- INTEGER PRIMARY KEY of tenants and of queues: a tenant that would come back just the same.
DELETE FROM tenants
WHERE tid = ?1 AND running = 0 AND lanes = 0 AND since IS NULL AND full_at <= ?2
    AND count <= (SELECT q.round FROM queues AS q WHERE q.qid = tenants.qid)

-- name: idle_ones
-- Partial index tenants_idle, up to now.
SELECT t.tid FROM tenants AS t INDEXED BY tenants_idle
WHERE t.lanes = 0 AND t.running = 0 AND t.since IS NULL AND t.full_at <= ?1
ORDER BY t.full_at
LIMIT ?2

-- name: forget_ones
-- INTEGER PRIMARY KEY.
DELETE FROM tenants WHERE tid IN (SELECT value FROM carray(?1))

-- name: {reset}
-- PRIMARY KEY (qid, tenant) of limits: tenants whose rate is another one now.
UPDATE tenants AS t SET full_at = 0
WHERE t.qid = ?1 AND t.full_at > 0 AND (t.every, t.burst) IS NOT (
    SELECT coalesce(m.every, ?2), coalesce(m.burst, ?3)
    FROM (SELECT 1) LEFT JOIN limits AS m ON m.qid = t.qid AND m.tenant = t.name
)

-- name: reset_rates
-- UNIQUE (qid, name): some tenants that follow each other.
{reset} AND t.name >= ?4 AND t.name < ?5

-- name: reset_rate
-- UNIQUE (qid, name).
{reset} AND t.name = ?4

-- name: {wake}
UPDATE tenants SET full = 0, wake_at = CASE WHEN since IS NULL THEN min(coalesce(wake_at, ?2), ?2) END
WHERE qid = ?1 AND (full OR (since IS NULL AND (wake_at IS NULL OR wake_at > ?2)))

-- name: wake_some
-- UNIQUE (qid, name): some tenants that follow each other.
{wake} AND name >= ?3 AND name < ?4

-- name: wake_tenant
-- UNIQUE (qid, name).
{wake} AND name = ?3

-- name: hold
-- PRIMARY KEY (tid, holder).
INSERT INTO holdings (tid, holder, jobs) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs

-- name: let_go
-- PRIMARY KEY (tid, holder).
UPDATE holdings SET jobs = jobs - ?3 WHERE tid = ?1 AND holder = ?2

-- name: forget_holding
-- PRIMARY KEY (tid, holder).
DELETE FROM holdings WHERE tid = ?1 AND holder = ?2 AND jobs <= 0

-- name: take
-- INTEGER PRIMARY KEY of tenants, PRIMARY KEY (tid, holder) of holdings; tenants_awake.
UPDATE tenants SET taken = (SELECT count(*) FROM holdings AS h WHERE h.tid = ?1) >= ?2 WHERE tid = ?1
