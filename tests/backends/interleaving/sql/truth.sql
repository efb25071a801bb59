-- What does not hold, and must at rest, whatever has happened; and what a store keeps beside the records: the jobs'
-- ids, whom each key leads to, who waits for which job, the workers that are listed, the queues that are paused, the
-- schedules' uids, and the keys that outlive the records of their jobs.

-- name: asked
SELECT FROM cancel_asked({now}, 1000)

-- name: truth
WITH places AS (
    SELECT y.id, y.qid, 0 AS state, y.keyed, 0::bigint AS bytes, NULL::bigint AS held_until, y.epoch FROM ready AS y
    UNION ALL SELECT l.id, l.qid, 1, l.keyed, 0, NULL, l.epoch FROM leased AS l
    UNION ALL SELECT p.id, p.qid, 2, p.keyed, 0, NULL, p.epoch FROM paused AS p
    UNION ALL SELECT e.id, e.qid, e.state, e.keyed, e.size, e.held_until, e.epoch FROM ended AS e
), counted AS (
    SELECT c.qid, c.state, sum(c.jobs) AS jobs, sum(c.bytes) AS bytes
    FROM (SELECT t.qid, t.state, t.jobs, t.bytes FROM totals AS t
        UNION ALL SELECT d.qid, d.state, d.jobs, d.bytes FROM deltas AS d
        UNION ALL SELECT -1, d.state, d.jobs, d.bytes FROM deltas AS d) AS c
    GROUP BY c.qid, c.state
), there_by_queue AS (
    SELECT p.qid, p.state, count(*) AS jobs, sum(p.bytes) AS bytes FROM places AS p GROUP BY p.qid, p.state
    UNION ALL
    SELECT 0, 6, count(*), 100 * count(*) FROM ticks HAVING count(*) > 0
    UNION ALL
    SELECT k.qid, 7, count(*), 0 FROM keys AS k WHERE k.alone_until IS NOT NULL GROUP BY k.qid
), there AS (
    SELECT * FROM there_by_queue
    UNION ALL
    SELECT -1, t.state, sum(t.jobs), sum(t.bytes) FROM there_by_queue AS t GROUP BY t.state
), wrong (what) AS (
    SELECT 'job ' || j.id || ' lies in ' || count(p.id) || ' places'
    FROM jobs AS j LEFT JOIN places AS p ON p.id = j.id GROUP BY j.id HAVING count(p.id) <> 1
    UNION ALL
    SELECT 'place of state ' || p.state || ' has job ' || p.id || ', which there is not'
    FROM places AS p LEFT JOIN jobs AS j ON j.id = p.id WHERE j.id IS NULL
    UNION ALL
    SELECT 'job ' || p.id || ' lies in a queue that there is not'
    FROM places AS p LEFT JOIN all_queues AS q ON q.qid = p.qid WHERE q.qid IS NULL
    UNION ALL
    SELECT 'running job ' || p.id || ' has epoch ' || p.epoch FROM places AS p WHERE p.state = 1 AND p.epoch < 1
    UNION ALL
    SELECT 'key ' || k.key || ' of queue ' || k.qid || ' leads to job ' || k.id || ', which is not there under that key'
    FROM keys AS k LEFT JOIN places AS p ON p.id = k.id AND p.qid = k.qid AND p.keyed
    LEFT JOIN jobs AS j ON j.id = p.id AND j.key = k.key WHERE j.id IS NULL AND k.alone_until IS NULL
    UNION ALL
    SELECT 'key ' || k.key || ' of queue ' || k.qid || ' outlives job ' || k.id || ', which is there under that key'
    FROM keys AS k JOIN places AS p ON p.id = k.id AND p.qid = k.qid AND p.keyed
    JOIN jobs AS j ON j.id = p.id AND j.key = k.key WHERE k.alone_until IS NOT NULL
    UNION ALL
    SELECT 'key ' || k.key || ' outlives its job until ' || k.alone_until || ', but is held until '
        || coalesce(k.held_until::text, 'its job ends') || CASE WHEN k.failed THEN ', as that failed' ELSE '' END
    FROM keys AS k WHERE k.alone_until IS NOT NULL AND (k.held_until IS DISTINCT FROM k.alone_until OR k.failed)
    UNION ALL
    SELECT 'live job ' || p.id || ' has key ' || coalesce(j.key, '-') || ', which is not held for it'
    FROM places AS p JOIN jobs AS j ON j.id = p.id
    LEFT JOIN keys AS k ON k.qid = p.qid AND k.key = j.key AND k.id = p.id AND k.held_until IS NULL AND NOT k.failed
    WHERE p.state < 3 AND p.keyed AND k.id IS NULL
    UNION ALL
    SELECT 'key ' || k.key || ' is held until ' || coalesce(k.held_until::text, 'its job ends') || ', job ' || p.id || ' until '
        || p.held_until || ', in state ' || p.state
    FROM keys AS k JOIN places AS p ON p.id = k.id
    WHERE p.state > 2 AND k.alone_until IS NULL AND (k.held_until IS DISTINCT FROM p.held_until OR k.failed <> (p.state = 5))
    UNION ALL
    SELECT 'queue ' || coalesce(c.qid, t.qid) || ' has ' || coalesce(t.jobs, 0) || ' jobs of ' || coalesce(t.bytes, 0)
        || ' bytes in state ' || coalesce(c.state, t.state) || ', but counts ' || coalesce(c.jobs, 0) || ' of '
        || coalesce(c.bytes, 0)
    FROM counted AS c FULL JOIN there AS t ON t.qid = c.qid AND t.state = c.state
    WHERE coalesce(c.jobs, 0) <> coalesce(t.jobs, 0) OR coalesce(c.bytes, 0) <> coalesce(t.bytes, 0)
    UNION ALL
    SELECT 'inbox ' || w.inbox || ' waits for job ' || w.id || ', which does not live'
    FROM waiters AS w LEFT JOIN places AS p ON p.id = w.id AND p.state < 3 WHERE p.id IS NULL
    UNION ALL
    SELECT 'job ' || a.id || ' is asked to end, and does not run'
    FROM asks AS a LEFT JOIN leased AS l ON l.id = a.id WHERE l.id IS NULL
    UNION ALL
    SELECT 'job ' || y.id || ' dies at ' || coalesce(y.dies_at::text, 'no time')
    FROM ready AS y JOIN jobs AS j ON j.id = y.id
    WHERE y.dies_at IS DISTINCT FROM CASE WHEN j.expires_at IS NOT NULL THEN greatest(j.expires_at, y.run_at) END
    UNION ALL
    SELECT 'schedule ' || coalesce(s.name, a.name) || ' says ' || coalesce(s.uid::text, 'nothing') || ', and is planned as '
        || coalesce(a.uid::text, 'nothing')
    FROM schedules AS s FULL JOIN agenda AS a ON a.name = s.name WHERE s.uid IS DISTINCT FROM a.uid
    UNION ALL
    SELECT 'slot ' || t.slot || ' of ' || t.uid || ' came to ' || t.outcome || ', with job ' || coalesce(t.job::text, '-')
    FROM ticks AS t WHERE (t.outcome = 0) <> (t.job IS NOT NULL)
)
SELECT
    ARRAY(SELECT w.what FROM wrong AS w),
    ARRAY(SELECT j.id FROM jobs AS j),
    ARRAY(SELECT ARRAY[q.name, k.key, replace(k.id::text, '-', '')] FROM keys AS k JOIN all_queues AS q ON q.qid = k.qid
        WHERE k.alone_until IS NULL),
    ARRAY(SELECT ARRAY[replace(w.id::text, '-', ''), w.inbox] FROM waiters AS w),
    ARRAY(SELECT w.worker FROM workers AS w WHERE w.listed_until > {now}),
    ARRAY(SELECT q.name FROM queues AS q WHERE q.paused_until > 0),
    ARRAY(SELECT a.uid FROM agenda AS a UNION SELECT t.uid FROM ticks AS t),
    ARRAY(SELECT ARRAY[q.name, k.key, replace(k.id::text, '-', ''), k.alone_until::text]
        FROM keys AS k JOIN all_queues AS q ON q.qid = k.qid WHERE k.alone_until IS NOT NULL)
