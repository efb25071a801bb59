-- Jobs by their names, with the place that they lie in.

-- name: by_id
-- UNIQUE jobs_id, one probe per id.
SELECT j.id, j.seq FROM carray(?1) AS wanted CROSS JOIN jobs AS j ON j.id = wanted.value

-- name: by_key
-- UNIQUE (name) of queues, PRIMARY KEY (qid, key) of keys.
SELECT k.seq FROM queues AS q CROSS JOIN keys AS k ON k.qid = q.qid WHERE q.name = ?1 AND k.key = ?2

-- name: entries
-- INTEGER PRIMARY KEY of jobs, queues, running, paused and ended, PRIMARY KEY of ready and workers; one probe each.
SELECT
    j.seq, j.id, j.qid, q.name, j.priority, j.run_at, j.task, j.tenant, j.key, j.enqueued_at, j.expires_at,
    j.max_attempts, j.timeout, j.result_ttl, j.headers, j.error, j.parameters, j.vm_state, j.metadata, j.blob, j.grp,
    j.lane,
    CASE
        WHEN y.seq IS NOT NULL THEN 0
        WHEN r.seq IS NOT NULL THEN 1
        WHEN p.seq IS NOT NULL THEN 2
        ELSE e.state
    END,
    coalesce(y.epoch, r.epoch, p.epoch, e.epoch),
    coalesce(y.attempt, r.attempt, p.attempt, e.attempt),
    coalesce(y.lost, r.lost, p.lost, e.lost),
    coalesce(y.size, r.size, p.size, e.size),
    r.holder, r.lease_until, r.cancel, e.finished_at, e.held_until, e.reason, e.result, w.worker, w.listed_until,
    coalesce(y.gid, r.gid, 0)
FROM carray(?1) AS wanted
CROSS JOIN jobs AS j ON j.seq = wanted.value
CROSS JOIN queues AS q ON q.qid = j.qid
LEFT JOIN ready AS y
    ON y.lane = j.lane AND y.priority = iif(j.lane < 0, 0, j.priority) AND y.run_at = j.run_at AND y.id = j.id
LEFT JOIN running AS r ON r.seq = j.seq
LEFT JOIN paused AS p ON p.seq = j.seq
LEFT JOIN ended AS e ON e.seq = j.seq
LEFT JOIN workers AS w ON w.holder = r.holder
