-- New jobs.

-- name: last
-- The last entry of the INTEGER PRIMARY KEY.
SELECT coalesce(max(seq), 0) FROM jobs

-- name: alone
-- UNIQUE (name) of queues, twice; the last entry of the INTEGER PRIMARY KEY; UNIQUE jobs_id. None: the queue is not
-- known or has rules, or the store has a depth, or the id is known.
SELECT q.qid, (SELECT coalesce(max(j.seq), 0) FROM jobs AS j) FROM queues AS q
WHERE q.name = ?1 AND NOT q.governed AND q.depth IS NULL
    AND NOT EXISTS (SELECT 1 FROM jobs AS k WHERE k.id = ?2)
    AND NOT EXISTS (SELECT 1 FROM queues AS s WHERE s.name = ?3 AND s.depth IS NOT NULL)

-- name: job
-- INTEGER PRIMARY KEY, appended; UNIQUE jobs_id; jobs_objects if it has references.
INSERT INTO jobs (
    seq, id, qid, lane, priority, run_at, task, tenant, key, grp, enqueued_at, expires_at, far, headers, parameters,
    vm_state, metadata, blob, object_hour, {carried}
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {carried?})

-- name: key_owner
-- PRIMARY KEY (qid, key) of keys, INTEGER PRIMARY KEY of ended. No state: the owner is live, or the key outlives it.
SELECT k.seq, e.state, e.held_until, k.id, k.held_until FROM keys AS k LEFT JOIN ended AS e ON e.seq = k.seq
WHERE k.qid = ?1 AND k.key = ?2

-- name: take_key
-- PRIMARY KEY (qid, key).
INSERT INTO keys (qid, key, seq) VALUES (?1, ?2, ?3) ON CONFLICT (qid, key) DO UPDATE SET seq = excluded.seq

-- name: drop_key
-- PRIMARY KEY (qid, key). A newer owner keeps the key.
DELETE FROM keys WHERE qid = ?1 AND key = ?2 AND seq = ?3

-- name: drop_key_of
-- INTEGER PRIMARY KEY of jobs, PRIMARY KEY (qid, key). A newer owner keeps the key.
DELETE FROM keys WHERE (qid, key) = (SELECT j.qid, j.key FROM jobs AS j WHERE j.seq = ?1) AND seq = ?1

-- name: outlived
-- INTEGER PRIMARY KEY of ended and jobs, PRIMARY KEY (qid, key) of keys, one probe each per seq: jobs
-- whose key is still held.
SELECT j.seq, j.qid, j.id, e.held_until
FROM carray(?1) AS wanted CROSS JOIN ended AS e ON e.seq = wanted.value CROSS JOIN jobs AS j ON j.seq = e.seq
CROSS JOIN keys AS k ON k.qid = j.qid AND k.key = j.key
WHERE e.held_until > ?2 AND k.seq = j.seq

-- name: outlive
-- INTEGER PRIMARY KEY of jobs, PRIMARY KEY (qid, key); keys_outlived.
UPDATE keys SET seq = 0, id = ?2, held_until = ?3
WHERE (qid, key) = (SELECT j.qid, j.key FROM jobs AS j WHERE j.seq = ?1)

-- name: drop_outlived
-- PRIMARY KEY (qid, key); keys_outlived.
DELETE FROM keys WHERE qid = ?1 AND key = ?2 AND held_until IS NOT NULL

-- name: wait
-- PRIMARY KEY (seq, inbox).
INSERT INTO waiters (seq, inbox, since) VALUES (?1, ?2, ?3)
ON CONFLICT (seq, inbox) DO UPDATE SET since = excluded.since

-- name: make_room
-- PRIMARY KEY (seq, inbox): the waiters of one job, without the latest.
DELETE FROM waiters WHERE seq = ?1 AND inbox IN (
    SELECT w.inbox FROM waiters AS w WHERE w.seq = ?1 ORDER BY w.since DESC, w.inbox LIMIT -1 OFFSET ?2
)
