-- What Headrace's promises need on disk, and as Headrace lays it out: the job under its unique id, its place in the queue,
-- a lease that can be found by its age, the record and result of what has ended, and the queue's counters.

-- name: schema
CREATE TABLE IF NOT EXISTS jobs (
    id uuid PRIMARY KEY, enqueued_at bigint NOT NULL, task text NOT NULL, tenant text NOT NULL, parameters bytea
);
CREATE TABLE IF NOT EXISTS ready (
    qid integer NOT NULL, priority smallint NOT NULL, run_at bigint NOT NULL, id uuid NOT NULL, epoch integer NOT NULL,
    attempt integer NOT NULL, lost integer NOT NULL, size integer NOT NULL, PRIMARY KEY (qid, priority, run_at, id)
);
CREATE UNIQUE INDEX IF NOT EXISTS ready_id ON ready (id);
CREATE TABLE IF NOT EXISTS leased (
    id uuid PRIMARY KEY, qid integer NOT NULL, priority smallint NOT NULL, run_at bigint NOT NULL, epoch integer NOT NULL,
    attempt integer NOT NULL, lost integer NOT NULL, size integer NOT NULL, lease_until bigint NOT NULL, holder text NOT NULL
);
CREATE INDEX IF NOT EXISTS leased_until ON leased (lease_until);
CREATE TABLE IF NOT EXISTS ended (
    id uuid PRIMARY KEY, qid integer NOT NULL, priority smallint NOT NULL, run_at bigint NOT NULL, epoch integer NOT NULL,
    attempt integer NOT NULL, lost integer NOT NULL, size integer NOT NULL, state smallint NOT NULL,
    finished_at bigint NOT NULL, held_until bigint NOT NULL, result bytea
);
CREATE INDEX IF NOT EXISTS ended_age ON ended (state, finished_at);
CREATE INDEX IF NOT EXISTS ended_results ON ended (held_until) WHERE result IS NOT NULL;
CREATE TABLE IF NOT EXISTS deltas (qid integer NOT NULL, state smallint NOT NULL, jobs bigint NOT NULL)

-- name: session
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan

-- name: insert
WITH job AS (
    INSERT INTO jobs VALUES (%(id)s, %(now)s, 'noop', '', %(parameters)s)
), place AS (
    INSERT INTO ready VALUES (1, 0, %(now)s, %(id)s, 0, 0, 0, 200)
)
INSERT INTO deltas VALUES (1, 0, 1)

-- name: copy_jobs
COPY jobs FROM STDIN (FORMAT binary)

-- name: copy_ready
COPY ready FROM STDIN (FORMAT binary)

-- name: counted
INSERT INTO deltas VALUES (1, 0, %(count)s)

-- name: turn
-- Ends some jobs and takes others: leased_pkey and jobs_pkey by id, ready_pkey from its head.
WITH over AS (
    DELETE FROM leased AS l USING unnest(%(done)s::uuid[]) AS d (id) WHERE l.id = d.id AND l.epoch = 1 RETURNING l.*
), kept AS (
    INSERT INTO ended
    SELECT o.id, o.qid, o.priority, o.run_at, o.epoch, o.attempt, o.lost, o.size, 3, %(now)s, %(now)s + 3600000000, 'null'
    FROM over AS o
), head AS MATERIALIZED (
    SELECT r.ctid AS place FROM ready AS r WHERE r.qid = 1 AND r.run_at <= %(now)s
    ORDER BY r.qid, r.priority, r.run_at, r.id LIMIT {batch} FOR UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
    DELETE FROM ready AS r USING head AS h WHERE r.ctid = h.place RETURNING r.*
), lease AS (
    INSERT INTO leased
    SELECT t.id, t.qid, t.priority, t.run_at, t.epoch + 1, t.attempt, t.lost, t.size, %(now)s + 30000000, 'holder'
    FROM taken AS t
), counted AS (
    INSERT INTO deltas
    SELECT c.* FROM (
        SELECT 1, 0, -count(*) FROM taken UNION ALL
        SELECT 1, 1, (SELECT count(*) FROM taken) - (SELECT count(*) FROM over) UNION ALL
        SELECT 1, 3, count(*) FROM over
    ) AS c (qid, state, jobs) WHERE c.jobs <> 0
)
SELECT t.id, j.parameters FROM taken AS t JOIN jobs AS j ON j.id = t.id
