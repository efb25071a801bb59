-- Jobs that cannot be read. When a statement has failed because of one, all waiting and running jobs are walked
-- through. Text is read as bytes.

-- name: waiting
-- PRIMARY KEY of ready, from ?1 to ?4 on, a bounded number; INTEGER PRIMARY KEY of jobs, queues and running.
SELECT
    y.lane, y.priority, y.run_at, y.id, y.seq, y.epoch, y.attempt, y.lost, y.size, y.gid, j.qid,
    j.id IS y.id AND q.qid IS NOT NULL, EXISTS (SELECT 1 FROM running AS r WHERE r.seq = y.seq AND j.id IS y.id),
    CAST(j.task AS BLOB), CAST(j.tenant AS BLOB), CAST(j.key AS BLOB), CAST(j.grp AS BLOB),
    typeof(j.headers), typeof(j.error), typeof(j.parameters), typeof(j.vm_state), typeof(j.metadata), typeof(j.blob)
FROM ready AS y LEFT JOIN jobs AS j ON j.seq = y.seq LEFT JOIN queues AS q ON q.qid = j.qid
WHERE (y.lane, y.priority, y.run_at, y.id) > (?1, ?2, ?3, ?4)
ORDER BY y.lane, y.priority, y.run_at, y.id
LIMIT ?5

-- name: running
-- A scan of running: leases are few; INTEGER PRIMARY KEY of jobs and of queues.
SELECT
    r.seq, r.qid, r.epoch, r.attempt, r.lost, r.size, r.gid, r.tid, j.id IS NOT NULL AND q.qid IS NOT NULL,
    CAST(r.holder AS BLOB), CAST(j.task AS BLOB), CAST(j.tenant AS BLOB), CAST(j.key AS BLOB), CAST(j.grp AS BLOB),
    typeof(j.headers), typeof(j.error), typeof(j.parameters), typeof(j.vm_state), typeof(j.metadata), typeof(j.blob)
FROM running AS r LEFT JOIN jobs AS j ON j.seq = r.seq LEFT JOIN queues AS q ON q.qid = j.qid

-- name: queue_of_lane
-- INTEGER PRIMARY KEY of queues, lanes, tenants and groups.
SELECT qid FROM queues WHERE qid = ?1
UNION ALL
SELECT t.qid FROM lanes AS l CROSS JOIN tenants AS t ON t.tid = l.tid WHERE l.lane = ?1
UNION ALL
SELECT g.qid FROM groups AS g WHERE g.gid = -?1

-- name: last
-- The last entry of each INTEGER PRIMARY KEY.
SELECT max(
    coalesce((SELECT max(seq) FROM jobs), 0), coalesce((SELECT max(seq) FROM running), 0),
    coalesce((SELECT max(seq) FROM paused), 0), coalesce((SELECT max(seq) FROM ended), 0)
)

-- name: known
-- UNIQUE jobs_id.
SELECT 1 FROM jobs WHERE id = ?1

-- name: stand_in
-- INTEGER PRIMARY KEY, UNIQUE jobs_id: a row for a job whose own is gone.
INSERT INTO jobs (seq, id, qid, lane, priority, run_at, task, tenant, enqueued_at, far)
VALUES (?1, ?2, ?3, ?3, ?4, ?5, '', '', ?6, 0)

-- name: drop_keys
-- PRIMARY KEY of keys: those of one queue.
DELETE FROM keys WHERE qid = ?1 AND seq = ?2

-- name: make_readable
-- INTEGER PRIMARY KEY.
UPDATE jobs SET
    task = ?2, tenant = ?3, key = ?4, grp = ?5,
    headers = iif(typeof(headers) IN ('text', 'real'), CAST(headers AS BLOB), headers),
    error = iif(typeof(error) IN ('text', 'real'), CAST(error AS BLOB), error),
    parameters = iif(typeof(parameters) IN ('text', 'real'), CAST(parameters AS BLOB), parameters),
    vm_state = iif(typeof(vm_state) IN ('text', 'real'), CAST(vm_state AS BLOB), vm_state),
    metadata = iif(typeof(metadata) IN ('text', 'real'), CAST(metadata AS BLOB), metadata),
    blob = iif(typeof(blob) IN ('text', 'real'), CAST(blob AS BLOB), blob)
WHERE seq = ?1

-- name: hold_readably
-- INTEGER PRIMARY KEY.
UPDATE running SET holder = ?2 WHERE seq = ?1
