-- Jobs by id, by key and by number, with all that the tables know of them.

-- name: by_id
-- UNIQUE jobs_id, one probe per id.
SELECT j.id, j.seq FROM carray(?1) AS wanted CROSS JOIN jobs AS j ON j.id = wanted.value

-- name: by_key
-- UNIQUE (name) of queues, PRIMARY KEY (qid, key) of keys.
SELECT k.seq FROM queues AS q CROSS JOIN keys AS k ON k.qid = q.qid WHERE q.name = ?1 AND k.key = ?2

-- name: entries
-- INTEGER PRIMARY KEY of jobs, queues, running, paused and ended, PRIMARY KEY of ready and workers; one probe each.
-- Text is read as bytes, because damage may have left something else. A job that is in no table, or in an unknown
-- state, is shown as FAILED.
SELECT
    j.seq, j.id, j.qid, CAST(coalesce(q.name, '') AS BLOB), j.priority, j.run_at, CAST(j.task AS BLOB),
    CAST(j.tenant AS BLOB), CAST(j.key AS BLOB), j.enqueued_at, j.expires_at,
    iif(typeof(j.headers) IN ('text', 'real'), CAST(j.headers AS BLOB), j.headers),
    iif(typeof(j.error) IN ('text', 'real'), CAST(j.error AS BLOB), j.error),
    iif(typeof(j.parameters) IN ('text', 'real'), CAST(j.parameters AS BLOB), j.parameters),
    iif(typeof(j.vm_state) IN ('text', 'real'), CAST(j.vm_state AS BLOB), j.vm_state),
    iif(typeof(j.metadata) IN ('text', 'real'), CAST(j.metadata AS BLOB), j.metadata),
    iif(typeof(j.blob) IN ('text', 'real'), CAST(j.blob AS BLOB), j.blob), CAST(j.grp AS BLOB),
    j.lane,
    CASE
        WHEN y.seq IS NOT NULL THEN 0
        WHEN r.seq IS NOT NULL THEN 1
        WHEN p.seq IS NOT NULL THEN 2
        ELSE iif(e.state BETWEEN 3 AND 5, e.state, 5)
    END,
    coalesce(y.epoch, r.epoch, p.epoch, e.epoch, 0),
    coalesce(y.attempt, r.attempt, p.attempt, e.attempt, 0),
    coalesce(y.lost, r.lost, p.lost, e.lost, 0),
    coalesce(y.size, r.size, p.size, e.size, 0),
    CAST(r.holder AS BLOB), r.lease_until, r.cancel, e.finished_at, e.held_until, CAST(e.reason AS BLOB),
    iif(typeof(e.result) IN ('text', 'real'), CAST(e.result AS BLOB), e.result), CAST(w.worker AS BLOB), w.listed_until,
    iif(typeof(r.progress) = 'blob', r.progress, NULL), coalesce(y.gid, r.gid, 0), {j.carried}
FROM carray(?1) AS wanted
CROSS JOIN jobs AS j ON j.seq = wanted.value
LEFT JOIN queues AS q ON q.qid = j.qid
LEFT JOIN ready AS y
    ON y.lane = j.lane AND y.priority = iif(j.lane < 0, 0, j.priority) AND y.run_at = j.run_at AND y.id = j.id
LEFT JOIN running AS r ON r.seq = j.seq
LEFT JOIN paused AS p ON p.seq = j.seq
LEFT JOIN ended AS e ON e.seq = j.seq
LEFT JOIN workers AS w ON w.holder = r.holder
